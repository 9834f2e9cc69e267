/* doctor.h: what the files of the verb `doctor` share: the report, which is a list of findings; a look at a
 * file that may be a libnccl; and probes, which run in child processes, so that nothing that they load or do
 * affects this one. */
#ifndef TUTTI_SIM_DOCTOR_H
#define TUTTI_SIM_DOCTOR_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum doctor_grade { DOCTOR_GOOD, DOCTOR_NOTE, DOCTOR_BAD };
enum { DOCTOR_TEXT = PATH_MAX + 1024, DOCTOR_FINDINGS_MOST = 512, DOCTOR_ANSWER = 65536 };

struct doctor_finding {
  enum doctor_grade grade;
  const char *topic; /* "library", "gpu", "system", "setting": constant texts */
  char *text, *cure; /* cure NULL if none is needed */
};

struct doctor {
  struct doctor_finding *findings;
  size_t count;
  uint32_t gpu_count;
  bool out_of_memory;
  char folder[PATH_MAX]; /* of this build's libraries; "" if they are not beside the command */
  int pid;               /* 0: no running process is inspected */
};

/* Adds a finding; `cure` may be NULL. */
void doctor_add(struct doctor *doctor, enum doctor_grade grade, const char *topic, const char *cure,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

/* What a file's contents show, without loading it. */
struct doctor_file {
  bool readable, is_nccl, is_ours, is_this_build;
};
void doctor_file_look(const struct doctor *doctor, const char *path, struct doctor_file *file);

/* Runs a program and reads at most DOCTOR_ANSWER - 1 bytes of its standard output, for at most `seconds`.
 * Returns its exit status; -1: it could not be run, was ended by a signal, or took too long. `extras` as in
 * child.h, may be NULL. */
int doctor_ask(char *const *arguments, const char *const *extras, unsigned seconds, char *answer);
/* Runs this command's own `doctor --probe WHAT`. */
int doctor_ask_probe(const char *what, char *answer);
/* Copies the rest of the answer's line that begins with `word` and a blank to `out`; false if there is none.
 */
bool doctor_answer_find(const char *answer, const char *word, char *out, size_t out_bytes);

/* The child's part of doctor_ask_probe: "gpus", "nics", or the name or path of a library. */
int doctor_probe(const char *what);
int doctor_probe_nics(void);

/* The sections of a report. `arguments` ends with NULL, [0] is the program; NULL: no program was given. */
void doctor_load(struct doctor *doctor, char *const *arguments);
void doctor_load_pid(struct doctor *doctor);
void doctor_gpus(struct doctor *doctor);
void doctor_nics(struct doctor *doctor, const char *gpus); /* `gpus`: what the probe of that name answered */
void doctor_system(struct doctor *doctor);
void doctor_settings(struct doctor *doctor);

#endif
