/* custom_build.h: builds a schedule, for the readers of all formats: they add blocks and steps in the order
 * of the file, each with its line; custom_settle() checks and completes what is known only at the end. */
#ifndef TUTTI_CORE_CUSTOM_BUILD_H
#define TUTTI_CORE_CUSTOM_BUILD_H

#include "base/log.h"
#include "core/custom/custom.h"

/* A step, with what is resolved at the end of the file. */
struct custom_row {
  struct list_step step; /* wait_lane: a block of the rank; wait_steps: a step of the file, from 0 */
  uint32_t number;       /* of the file's step; a step that names several chunks has one row for each */
  uint32_t line;
};

/* One block while its file is read. */
struct custom_draft {
  uint32_t first_row, row_count, line;
};

struct custom_build {
  const char *name; /* of the file */
  struct custom_schedule *schedule;
  struct custom_draft *drafts; /* by block of the schedule */
  struct custom_row *rows;
  uint32_t block_capacity, row_capacity, row_count;
};

/* Fails with "file:line: " before the message. */
ncclResult_t custom_fail_at(const char *source, int source_line, const struct custom_build *build,
                            uint32_t line, const char *format, ...) LOG_FORMAT(5, 6);
#define custom_fail(build, line, ...) custom_fail_at(__FILE__, __LINE__, (build), (line), __VA_ARGS__)

/* custom_start() begins an empty schedule `name`. custom_finish() ends it: if `result` and custom_settle()
 * succeed, *schedule is the result, else everything is freed. */
ncclResult_t custom_start(const char *name, struct custom_build *build);
ncclResult_t custom_finish(struct custom_build *build, ncclResult_t result,
                           struct custom_schedule **schedule);

/* Adds a block of a rank; the steps that follow belong to it. *block is valid until the next block. */
ncclResult_t custom_add_block(struct custom_build *build, uint32_t rank, uint32_t channel, uint32_t line,
                              struct custom_block **block);
/* Finds or adds the current block's link to `peer`. */
ncclResult_t custom_add_link(struct custom_build *build, bool sends, uint32_t peer, uint32_t line,
                             uint32_t *link);
/* Adds a step of the current block that moves `chunk_count` chunks; `step` names the first. */
ncclResult_t custom_add_step(struct custom_build *build, const struct list_step *step, uint32_t chunk_count,
                             uint32_t line);

/* After the last step: completes and checks the schedule. */
ncclResult_t custom_settle(struct custom_build *build);
/* Sets `even`: true unless every chunk is known to have the same place in its block at both ends of each
 * connection and within each step. */
void custom_settle_even(struct custom_schedule *schedule);

/* Chunks of the user's input and output as a rank sees them. */
uint32_t custom_in_chunks(const struct custom_schedule *schedule);
uint32_t custom_out_chunks(const struct custom_schedule *schedule);

/* A collective by its name in files ("all_reduce", "allreduce"); -1 if unknown. */
int custom_func_of(const char *name);
const char *custom_func_name(uint8_t func);
/* A protocol by its name in any case; -1 if unknown. */
int custom_proto_of(const char *name);

/* Takes the schedule's name from a file: truncated, without characters that tutti's text cannot hold. */
void custom_name_take(struct custom_schedule *schedule, const char *text);

/* tutti's text format */
#define CUSTOM_TEXT_FIRST_LINE "tutti-schedule 1"
#define CUSTOM_TEXT_LINE_BYTES 4096 /* maximum */

/* Fills an empty schedule. `text` has `bytes` bytes and a terminating zero. */
typedef ncclResult_t custom_parser(struct custom_build *build, char *text, size_t bytes);
custom_parser custom_text_parse;

/* Parse a schedule from memory, or from a file; messages show `name` as the path. *schedule is set only on
 * success. */
ncclResult_t custom_parse_as(const char *name, const char *text, size_t bytes, custom_parser *parse,
                             struct custom_schedule **schedule);
ncclResult_t custom_read_as(const char *path, custom_parser *parse, struct custom_schedule **schedule);
/* The first character that is not blank: '<' for XML, '{' for JSON. */
char custom_first_letter(const char *text);

#endif
