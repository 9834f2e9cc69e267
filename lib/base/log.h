/* log.h: the log, in NCCL's format: levels, subsystems, files, and the last warning, kept for
 * ncclGetLastError. Thread safe. Reads NCCL_DEBUG, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE and the time-stamp
 * variables once, at first use. Knows nothing of communicators; callers name the rank in the text. */
#ifndef TUTTI_BASE_LOG_H
#define TUTTI_BASE_LOG_H

#include <stdbool.h>

#include "base/err.h"

enum log_level { LOG_NONE = 0, LOG_VERSION = 1, LOG_WARN = 2, LOG_INFO = 3, LOG_ABORT = 4, LOG_TRACE = 5 };

enum log_subsystem {
  LOG_INIT = 1,
  LOG_COLL = 2,
  LOG_P2P = 4,
  LOG_SHM = 8,
  LOG_NET = 0x10,
  LOG_GRAPH = 0x20,
  LOG_TUNING = 0x40,
  LOG_ENV = 0x80,
  LOG_ALLOC = 0x100,
  LOG_CALL = 0x200,
  LOG_PROXY = 0x400,
  LOG_NVLS = 0x800,
  LOG_BOOTSTRAP = 0x1000,
  LOG_REG = 0x2000,
  LOG_PROFILE = 0x4000,
  LOG_RAS = 0x8000,
  LOG_DESTROY = 0x10000,
  LOG_ALLOC_HOST = 0x20000,
  LOG_ALL = 0x3ffff
};

#define LOG_FORMAT(format_index, first_index) __attribute__((format(printf, format_index, first_index)))

/* True when a message of this level and subsystem would be printed; lets a caller skip costly arguments. */
bool log_enabled(enum log_level level, unsigned subsystem);

/* Informational line: "host:pid:tid [device] NCCL INFO text". */
void log_info(unsigned subsystem, const char *format, ...) LOG_FORMAT(2, 3);
/* As log_info at TRACE level: always compiled, printed only with NCCL_DEBUG=TRACE. */
void log_trace(unsigned subsystem, const char *format, ...) LOG_FORMAT(2, 3);
/* "host:pid:tid NCCL CALL text", printed with NCCL_DEBUG_SUBSYS=CALL. */
void log_call(const char *format, ...) LOG_FORMAT(1, 2);

/* A warning: what failed, on what, why, and one next action. Kept as the last error even if not printed. Use
 * the macros below, which add file and line. */
void log_urgent_at(const char *file, int line, const char *format, ...) LOG_FORMAT(3, 4);
void log_visible_at(const char *file, int line, const char *format, ...) LOG_FORMAT(3, 4);
void log_warn_at(const char *file, int line, const char *format, ...) LOG_FORMAT(3, 4);
ncclResult_t log_fail_at(const char *file, int line, ncclResult_t code, const char *format, ...)
    LOG_FORMAT(4, 5);
#define log_warn(...) log_warn_at(__FILE__, __LINE__, __VA_ARGS__)
/* A warning that goes to stderr even if NCCL_DEBUG is not set: the diagnosis of a failed run. If NCCL_DEBUG
 * is set, it decides as for any warning. */
#define log_urgent(...) log_urgent_at(__FILE__, __LINE__, __VA_ARGS__)
/* The same for a warning that is no diagnosis: a setting that cannot be read. */
#define log_visible(...) log_visible_at(__FILE__, __LINE__, __VA_ARGS__)
/* Logs the warning and yields `code`: return log_fail(ncclInvalidArgument, "..."); */
#define log_fail(code, ...) log_fail_at(__FILE__, __LINE__, (code), __VA_ARGS__)
/* Reports that memory is out; the format says for what. Logs "WHAT: out of memory (N bytes); free some and
 * try again", N being the size of this thread's failed allocation, and returns ncclSystemError. */
ncclResult_t log_no_memory_at(const char *file, int line, const char *format, ...) LOG_FORMAT(3, 4);
#define log_no_memory(...) log_no_memory_at(__FILE__, __LINE__, __VA_ARGS__)
/* The same words, for texts that do not go to the log. */
#define LOG_OUT_OF_MEMORY ": out of memory; free some and try again"

/* Text of the process's last warning; "" if there is none. Valid until the calling thread's next call. */
const char *log_last_error(void);
/* Text of the calling thread's last warning, the reason why its last call failed, independent of other
 * threads; "" if there is none. Valid until the thread's next warning. */
const char *log_own_error(void);

/* log_evidence(true): this thread's warnings from now on are evidence for a later diagnosis. They are printed
 * as usual and become the process's last error, except that they do not replace a diagnosis (log_urgent).
 * Used by code whose failures another part of the library diagnoses: a connection that closes after its
 * communicator's diagnosis must not hide it. log_evidence(false), the initial state, ends it. */
void log_evidence(bool gathered);

/* log_hush(true): this thread's warnings from now on are information, and no last error: a caller expects
 * that what it tries may fail, and goes on then. log_hush(false), the initial state, ends it. */
void log_hush(bool hushed);

/* Sets the device number in brackets in this thread's lines; initially -1, which is printed as such. */
void log_set_device(int device_index);

/* Prints "NCCL version 2.30.7 (tutti ...)" once per process at level VERSION and above. */
void log_version(void);

/* Drops all settings and state, so that a test can change the environment. */
void log_reset(void);

#endif
