/* read.c: detects a file's format: tutti's text, MSCCL's XML (msccl.c) or MSCCL++'s JSON (mscclpp.c). */
#include "core/custom/custom_build.h"
#include "schedules/formats.h"
#include "schedules/schedules.h"

static ncclResult_t parse_any(struct custom_build *build, char *text, size_t bytes) {
  const char begin = custom_first_letter(text);
  if (begin == '<') return custom_msccl_parse(build, text, bytes);
  if (begin == '{') return custom_mscclpp_parse(build, text, bytes);
  return custom_text_parse(build, text, bytes);
}

ncclResult_t custom_parse(const char *name, const char *text, size_t bytes,
                          struct custom_schedule **schedule) {
  return custom_parse_as(name, text, bytes, parse_any, schedule);
}

ncclResult_t custom_read(const char *path, struct custom_schedule **schedule) {
  return custom_read_as(path, parse_any, schedule);
}
