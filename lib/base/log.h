/* log.h: NCCL's log, line for line: levels, subsystems, files, and the last warning kept for
 * ncclGetLastError. Thread safe. Reads NCCL_DEBUG, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE and the time-stamp
 * names once, at first use. Knows nothing of communicators; a caller says which rank speaks in the text. */
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

/* A warning: what failed, on what, why, and one next action. Kept as the last error whether printed or not.
 * Use through the macros below, which add file and line. */
void log_urgent_at(const char *file, int line, const char *format, ...) LOG_FORMAT(3, 4);
void log_warn_at(const char *file, int line, const char *format, ...) LOG_FORMAT(3, 4);
ncclResult_t log_fail_at(const char *file, int line, ncclResult_t code, const char *format, ...)
    LOG_FORMAT(4, 5);
#define log_warn(...) log_warn_at(__FILE__, __LINE__, __VA_ARGS__)
/* A warning that goes to stderr even when NCCL_DEBUG is not set: the verdict that a run has failed. An
 * NCCL_DEBUG that is set decides as for any warning. */
#define log_urgent(...) log_urgent_at(__FILE__, __LINE__, __VA_ARGS__)
/* Logs the warning and yields `code`: return log_fail(ncclInvalidArgument, "..."); */
#define log_fail(code, ...) log_fail_at(__FILE__, __LINE__, (code), __VA_ARGS__)
/* Memory is out, in the same words everywhere: the format says for what. Logs "WHAT: out of memory (N bytes);
 * free some and try again", N being what this thread asked for in vain, and yields ncclSystemError. */
ncclResult_t log_no_memory_at(const char *file, int line, const char *format, ...) LOG_FORMAT(3, 4);
#define log_no_memory(...) log_no_memory_at(__FILE__, __LINE__, __VA_ARGS__)
/* Those words, for texts that go elsewhere than to the log. */
#define LOG_OUT_OF_MEMORY ": out of memory; free some and try again"

/* Text of the process's last warning; "" when there was none. Valid until the calling thread asks again. */
const char *log_last_error(void);
/* Text of the calling thread's last warning: why the call failed that it has just made, whatever other
 * threads say meanwhile. "" when there was none. Valid until its next warning. */
const char *log_own_error(void);

/* True: what this thread warns of from now on is evidence. It is written as ever, and becomes the process's
 * last error but for one case: it takes no verdict's place (log_urgent's). For a part of the library whose
 * failures are judged by another: a connection that closes after its communicator's verdict was told must not
 * hide that. False, which is how threads begin, ends it. */
void log_evidence(bool gathered);

/* The device number shown in brackets by this thread's lines; -1, the start value, shows as such. */
void log_set_device(int device_index);

/* Prints "NCCL version 2.28.9 (tutti ...)" once per process at level VERSION and above. */
void log_version(void);

/* Forgets what was read and printed so far, so that a test can change the environment. */
void log_reset(void);

#endif
