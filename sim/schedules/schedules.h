/* schedules.h: what the command does with users' schedules beyond what a running program needs: reads those
 * of other tools, prints them, and converts between schedules and plans. */
#ifndef TUTTI_SIM_SCHEDULES_H
#define TUTTI_SIM_SCHEDULES_H

#include "core/custom/custom.h"

/* Reads a file of any format. ncclInvalidUsage with file, line and what was expected if it is malformed or
 * beyond a limit, ncclSystemError if it cannot be opened or memory is out; *schedule is set only on success
 * (free with custom_free). */
ncclResult_t custom_read(const char *path, struct custom_schedule **schedule);
/* The same for text in memory; `name` is the path in messages. */
ncclResult_t custom_parse(const char *name, const char *text, size_t bytes,
                          struct custom_schedule **schedule);

/* The plan of one rank for one call of `count` elements (as in the API call) of four bytes, with sum: its
 * works have ALGO_CUSTOM and point into the schedule, which must outlive it. Buffers are NULL; free with
 * plan_free(). ncclInvalidUsage when the schedule cannot carry that count. */
ncclResult_t custom_plan(const struct custom_schedule *schedule, uint32_t rank, size_t count,
                         const struct plan_limits *limits, struct plan *plan);

/* The same for all ranks at once: an array of rank_count plans, freed with custom_plans_free(). */
ncclResult_t custom_plans(const struct custom_schedule *schedule, size_t count,
                          const struct plan_limits *limits, struct plan **plans);
void custom_plans_free(const struct custom_schedule *schedule, struct plan *plans);

/* The fewest slots of a connection, 1..most, with which `ends` reports that the plans of all ranks run to
 * their end; *slots is 0 if there is no such number. `ends` is the checker's; it supplies the rest of the
 * check. */
ncclResult_t custom_slots_min(const struct custom_schedule *schedule, size_t count,
                              const struct plan_limits *limits, uint32_t most,
                              bool (*ends)(void *argument, const struct plan *plans, uint32_t rank_count),
                              void *argument, uint32_t *slots);

/* The schedule of a set of plans: one plan per rank, in the order of the ranks, each of one operation whose
 * data is even chunks. `chunk_count` of the schedule is the finest grid on which all steps begin and end. It
 * does not keep which values are final for the receiver (STEP_SEND_FINAL, STEP_RECV_FINAL): lists send
 * through slots. */
ncclResult_t custom_of_plans(const char *name, const struct plan *plans, uint32_t rank_count,
                             struct custom_schedule **schedule);

/* A schedule in tutti's text, line by line without their ends; reading it back yields the same schedule. */
void custom_print(const struct custom_schedule *schedule, void (*emit)(void *argument, const char *line),
                  void *argument);

#endif
