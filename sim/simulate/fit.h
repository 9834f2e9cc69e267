/* fit.h: costs from measurements: a file of `tutti bench --tune` has rules, each with the time of its
 * smallest size. Each such call is simulated on one node with the rule's option. The fit chooses three kinds
 * of factors - one for the times of a call, a slice and a post per protocol, one for a lane's bandwidth per
 * protocol, one for the share of links - that minimize the mean square of the logarithms of simulated by
 * measured time. The same file gives the same result. */
#ifndef TUTTI_SIM_SIMULATE_FIT_H
#define TUTTI_SIM_SIMULATE_FIT_H

#include "core/plan/tune_file.h"
#include "simulate/cluster.h"

struct fit {
  struct tune_file *rules; /* an os_alloc block */
  uint32_t time_count; /* that were used; rules without a time, or for more ranks than a node has, are not */
  double off;          /* the geometric mean of the ratios, each at least 1 */
};

/* Changes the costs of *spec. ncclInvalidUsage with file and line if a rule is wrong; ncclSystemError if the
 * file cannot be read or memory is out. On success *fit is filled. */
ncclResult_t fit_read(const char *path, struct cluster_spec *spec, struct fit *fit);

#endif
