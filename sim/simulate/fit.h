/* fit.h: costs from measurements: a file that `tutti bench --tune` wrote has rules, and behind each the time
 * of its smallest size. Each such call is simulated on one node with the option that the rule names, and by
 * protocol what a call, a slice and a post take is multiplied by one number, what a lane moves by another,
 * and the share of links by a third, until the times agree best in the mean of the squares of their
 * logarithms. Searches the same way for the same file. */
#ifndef TUTTI_SIM_SIMULATE_FIT_H
#define TUTTI_SIM_SIMULATE_FIT_H

#include "core/plan/tune_file.h"
#include "simulate/cluster.h"

struct fit {
  struct tune_file *rules; /* an os_alloc block */
  uint32_t time_count;     /* that were met; rules without a time, or of ranks that a node lacks, are not */
  double off;              /* the geometric mean of the ratios, each at least 1 */
};

/* Changes the costs of *spec. ncclInvalidUsage by file and line where a rule is wrong; ncclSystemError when
 * it cannot be read or memory is out. On success *fit is filled. */
ncclResult_t fit_read(const char *path, struct cluster_spec *spec, struct fit *fit);

#endif
