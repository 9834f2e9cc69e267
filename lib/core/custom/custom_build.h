/* custom_build.h: what the readers of all formats put a schedule together with: blocks and steps in the
 * order of the file, each with its line; at the end what can only be known then is checked and filled in. */
#ifndef TUTTI_CORE_CUSTOM_BUILD_H
#define TUTTI_CORE_CUSTOM_BUILD_H

#include "base/log.h"
#include "core/custom/custom.h"

/* A step, and what its file says that is settled at the end. */
struct custom_row {
  struct list_step step; /* wait_lane: a block of the rank, wait_steps: a step of the file, from 0 */
  uint32_t number;       /* of the file's step: one that names several chunks has a row for each */
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

/* Fails with "file:line: " before the sentence. */
ncclResult_t custom_fail_at(const char *source, int source_line, const struct custom_build *build,
                            uint32_t line, const char *format, ...) LOG_FORMAT(5, 6);
#define custom_fail(build, line, ...) custom_fail_at(__FILE__, __LINE__, (build), (line), __VA_ARGS__)

/* Begins with an empty schedule of `name`, and ends what was begun: on success of `result` and of
 * custom_settle() *schedule is the builder's, else everything is freed. */
ncclResult_t custom_start(const char *name, struct custom_build *build);
ncclResult_t custom_finish(struct custom_build *build, ncclResult_t result,
                           struct custom_schedule **schedule);

/* A block of a rank; what follows are its steps. The returned one is good until the next. */
ncclResult_t custom_add_block(struct custom_build *build, uint32_t rank, uint32_t channel, uint32_t line,
                              struct custom_block **block);
/* The link of the current block to `peer`, made if it is not there. */
ncclResult_t custom_add_link(struct custom_build *build, bool sends, uint32_t peer, uint32_t line,
                             uint32_t *link);
/* A step of the current block that moves `chunk_count` chunks, of which `step` names the first. */
ncclResult_t custom_add_step(struct custom_build *build, const struct list_step *step, uint32_t chunk_count,
                             uint32_t line);

/* Behind the last step: makes the schedule whole. */
ncclResult_t custom_settle(struct custom_build *build);
/* Sets `even`: true unless every chunk's place in its block is known to be the same at both ends of each
 * connection, and within each step. */
void custom_settle_even(struct custom_schedule *schedule);

/* Chunks of the user's input and output as a rank sees them. */
uint32_t custom_in_chunks(const struct custom_schedule *schedule);
uint32_t custom_out_chunks(const struct custom_schedule *schedule);

/* A collective by the name that files give it ("all_reduce", "allreduce"); -1 for none. */
int custom_func_of(const char *name);
const char *custom_func_name(uint8_t func);
/* A protocol by its name in any case, -1 for none. */
int custom_proto_of(const char *name);

/* The schedule's name as a file gives it, cut to its space, without what tutti's text cannot hold. */
void custom_name_take(struct custom_schedule *schedule, const char *text);

/* Of tutti's text. */
#define CUSTOM_TEXT_FIRST_LINE "tutti-schedule 1"
#define CUSTOM_TEXT_LINE_BYTES 4096 /* at most */

/* Fills an empty schedule. `text` ends with a zero behind `bytes`. */
typedef ncclResult_t custom_parser(struct custom_build *build, char *text, size_t bytes);
custom_parser custom_text_parse;

/* A schedule out of text in memory, or out of a file, by one of those; `name` stands for the path in
 * sentences. *schedule is set on success alone. */
ncclResult_t custom_parse_as(const char *name, const char *text, size_t bytes, custom_parser *parse,
                             struct custom_schedule **schedule);
ncclResult_t custom_read_as(const char *path, custom_parser *parse, struct custom_schedule **schedule);
/* The first letter behind blanks: XML begins with an angle bracket, JSON with a brace. */
char custom_first_letter(const char *text);

#endif
