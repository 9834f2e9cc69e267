/* cluster_text.c: the text that describes a cluster (cluster.h): lines of a name and a value; # begins a
 * comment. Knows no machine. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "simulate/cluster.h"

static ncclResult_t line_fail(const char *path, uint32_t line, const char *expected) {
  return log_fail(ncclInvalidUsage, "%s line %u: expected %s", path, line, expected);
}

static bool whole_read(const char *text, uint32_t most, uint32_t *number) {
  char *end;
  errno = 0;
  const unsigned long value = strtoul(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != 0 || errno || value < 1 || value > most) return false;
  *number = (uint32_t)value;
  return true;
}

static bool decimal_read(const char *text, double lowest, double most, double *number) {
  char *end;
  const double value = strtod(text, &end);
  if (end == text || *end != 0 || !(value >= lowest && value <= most)) return false;
  *number = value;
  return true;
}

static ncclResult_t line_read(const char *path, uint32_t line, const char *name, const char *value,
                              struct cluster_spec *spec) {
  struct cluster_fabric *fabric = &spec->fabric;
  if (!strcmp(name, "machine")) spec->machine = value;
  else if (!strcmp(name, "topology")) spec->topology = value;
  else if (!strcmp(name, "sysfs")) spec->sysfs = value;
  else if (!strcmp(name, "nodes"))
    return whole_read(value, TOPOLOGY_NODES_MAX, &spec->nodes) ? ncclSuccess
                                                               : line_fail(path, line, "nodes 1 to 65536");
  else if (!strcmp(name, "gpus")) {
    spec->gpus_given = true;
    return whole_read(value, TOPOLOGY_GPUS_MAX, &spec->gpus) ? ncclSuccess
                                                             : line_fail(path, line, "gpus 1 to 128");
  } else if (!strcmp(name, "leaf_nodes"))
    return whole_read(value, TOPOLOGY_NODES_MAX, &fabric->leaf_nodes)
               ? ncclSuccess
               : line_fail(path, line, "leaf_nodes 1 to 65536");
  else if (!strcmp(name, "hop_us"))
    return decimal_read(value, 0, 1e6, &fabric->hop_us) ? ncclSuccess
                                                        : line_fail(path, line, "hop_us 0 to 1e6");
  else if (!strcmp(name, "oversubscription"))
    return decimal_read(value, 0.01, 1000, &fabric->oversubscription)
               ? ncclSuccess
               : line_fail(path, line, "oversubscription 0.01 to 1000");
  else if (!strcmp(name, "loggp") || !strcmp(name, "cost")) {
    const char *expected =
        *name == 'l' ? cluster_loggp_set(spec, value) : cluster_cost_set(&spec->costs, value);
    spec->costs_changed = spec->costs_changed || *name == 'c';
    return expected ? line_fail(path, line, expected) : ncclSuccess;
  } else
    return line_fail(
        path, line,
        "one of machine, topology, sysfs, nodes, gpus, leaf_nodes, hop_us, oversubscription, loggp and "
        "cost, then a value");
  return ncclSuccess;
}

/* The next word of a line, ended in place; "" at the line's end. */
static char *word_next(char **at) {
  char *begin = *at + strspn(*at, " \t\r");
  char *end = begin + strcspn(begin, " \t\r");
  *at = *end ? end + 1 : end;
  *end = 0;
  return begin;
}

ncclResult_t cluster_parse(const char *path, char *text, struct cluster_spec *spec) {
  for (uint32_t line = 1; *text; line++) {
    char *next = text + strcspn(text, "\n"), *at = text;
    if (*next) *next++ = 0;
    at[strcspn(at, "#")] = 0;
    const char *name = word_next(&at), *value = word_next(&at);
    if (*name && (!*value || *word_next(&at))) return line_fail(path, line, "a name and one value");
    if (*name) TRY(line_read(path, line, name, value, spec));
    text = next;
  }
  return ncclSuccess;
}

ncclResult_t cluster_read(const char *path, struct cluster_spec *spec, char **text) {
  size_t bytes;
  char *read = os_file_read(path, &bytes);
  if (!read) return log_fail(ncclSystemError, "%s cannot be read: %s", path, strerror(errno));
  *text = read;
  if (strlen(read) != bytes) return line_fail(path, 1, "text without zero bytes");
  return cluster_parse(path, read, spec);
}
