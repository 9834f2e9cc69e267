/* check_run.c: proves what `tutti check --all --ranks 2-4` proves, for run_check.py, which links it with an
 * executor that has a bug. Prints the broken rule and its sentence, or `proved`. */
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "check/all.h"

int main(void) {
  struct check_all_report report;
  struct progress progress;
  memset(&report, 0, sizeof report);
  progress_open(&progress, "check", NULL, stderr, false, os_time_ns());
  if (check_all(2, 4, 1, &progress, &report) != ncclSuccess) return 2;
  if (!report.failed) {
    printf("proved\n");
    return 0;
  }
  printf("%s: %s\n", check_rule_name(report.report.rule), report.report.text);
  return 1;
}
