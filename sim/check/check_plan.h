/* check_plan.h: `tutti check --plan`, and how findings are printed, which both halves of the verb share. */
#ifndef TUTTI_SIM_CHECK_PLAN_H
#define TUTTI_SIM_CHECK_PLAN_H

#include <stdio.h>

#include "check/request.h"
#include "verb.h"

struct check_plan_flags {
  const char *path;
  uint32_t proto_mask; /* which protocols of the file to prove */
  uint8_t dtype;
  int64_t count, bytes; /* as the flags of `tutti check`; -1: several counts around every boundary */
  uint32_t slots, chunk_bytes, first_step;
  bool in_place; /* only in place; else in every place that the file allows */
  bool json, min_slots;
  bool print; /* print the schedule in tutti's text, and prove nothing */
};

/* Reads a schedule, proves it for the collective that its header names, and prints the findings. */
enum exit_code check_plan_file(const struct check_plan_flags *flags);

/* Prints the steps that all ranks take for the call, in the text that --plan reads; any_count: for a count
 * that is cut into few even chunks instead of the call's. */
enum exit_code check_plan_print(const char *name, struct check_setup *setup, const struct check_call *call,
                                bool any_count);

/* "rank 0 channel 1 block 2 step 3 ", as far as they are known. */
void check_print_place(FILE *out, const struct check_report *report);
struct json;
/* Writes a finding as members of the open JSON object. */
void check_json_finding(struct json *json, const char *collective, const struct check_report *report,
                        bool proved);
/* The same as one JSON object; slots_min below 0 is omitted. */
void check_print_json(const char *collective, const struct check_report *report, bool proved,
                      int64_t slots_min);

#endif
