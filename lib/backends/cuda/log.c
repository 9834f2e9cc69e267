/* log.c: base/log.h and the used part of base/param.h for this library. Lines are formatted here and printed
 * by the library that loaded it, which also reads the settings, so that there is one log, one last error and
 * one table of settings. A line longer than its buffer is truncated. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "backends/cuda/device.h"
#include "base/param.h"

#define LINE_BYTES 1024

static struct backend_services log_services;

void cuda_log_open(const struct backend_services *services) { log_services = *services; }

void log_info(unsigned subsystem, const char *format, ...) {
  char text[LINE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  log_services.info(subsystem, text);
}

static void warn(const char *file, int line, bool urgent, const char *format, va_list arguments) {
  char text[LINE_BYTES];
  vsnprintf(text, sizeof text, format, arguments);
  log_services.warn(file, line, urgent, text);
}

void log_warn_at(const char *file, int line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  warn(file, line, false, format, arguments);
  va_end(arguments);
}

void log_urgent_at(const char *file, int line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  warn(file, line, true, format, arguments);
  va_end(arguments);
}

ncclResult_t log_fail_at(const char *file, int line, ncclResult_t code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  warn(file, line, false, format, arguments);
  va_end(arguments);
  return code;
}

const char *log_last_error(void) { return log_services.last_error(); }

int64_t param_int(enum param_id id) { return log_services.setting_number((int)id); }

const char *param_text(enum param_id id) { return log_services.setting_text((int)id); }
