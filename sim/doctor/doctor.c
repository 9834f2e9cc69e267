/* doctor.c: the verb `doctor`: which libnccl a program loads, or a process has loaded, whether it is this
 * library, and what else would keep it from working, with one fix per problem. Changes nothing, loads foreign
 * libraries only in child processes, and needs no GPU. */
#include "doctor/doctor.h"

#include <errno.h>
#include <poll.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/log.h"
#include "base/os.h"
#include "json.h"
#include "tutti.h"
#include "verb.h"

#define NS_PER_SECOND 1000000000ull

struct doctor_flags {
  int64_t pid;
  const char *probe;
  bool json, quiet;
};

#define AT(member) offsetof(struct doctor_flags, member)
static const struct option_row rows[] = {
    {'p', "pid", "N", OPTION_INT, AT(pid), 1, INT32_MAX, "report on the running process N instead"},
    {'J', "json", NULL, OPTION_FLAG, AT(json), 0, 0, "print JSON"},
    {'q', "quiet", NULL, OPTION_FLAG, AT(quiet), 0, 0, "print problems only"},
    {0, "probe", "WHAT", OPTION_TEXT, AT(probe), 0, 0,
     "load the library WHAT, or the driver with `gpus`, into this process and print what was found; the "
     "doctor runs itself with this flag"},
};
static const struct option_set options = {"doctor", rows, sizeof rows / sizeof rows[0], true, false, false};

/* ---- findings */

void doctor_add(struct doctor *doctor, enum doctor_grade grade, const char *topic, const char *cure,
                const char *format, ...) {
  char text[DOCTOR_TEXT];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (doctor->count == DOCTOR_FINDINGS_MOST) return;
  struct doctor_finding *finding = &doctor->findings[doctor->count];
  finding->text = os_strdup(text);
  finding->cure = cure ? os_strdup(cure) : NULL;
  if (!finding->text || (cure && !finding->cure)) {
    os_free(finding->text);
    os_free(finding->cure);
    doctor->out_of_memory = true;
    return;
  }
  finding->grade = grade;
  finding->topic = topic;
  doctor->count += 1;
}

static size_t bad_count(const struct doctor *doctor) {
  size_t count = 0;
  for (size_t i = 0; i < doctor->count; i++) count += doctor->findings[i].grade == DOCTOR_BAD;
  return count;
}

static void report_text(const struct doctor *doctor, bool quiet) {
  static const char *const grades[] = {"ok", "note", "not ok"};
  for (size_t i = 0; i < doctor->count; i++) {
    const struct doctor_finding *finding = &doctor->findings[i];
    if (quiet && finding->grade != DOCTOR_BAD) continue;
    printf("%-7s %-8s %s\n", grades[finding->grade], finding->topic, finding->text);
    if (finding->cure) printf("%16s cure: %s\n", "", finding->cure);
  }
  const size_t bad = bad_count(doctor);
  if (bad > 0) printf("%zu of %zu need a cure\n", bad, doctor->count);
  else if (!quiet) printf("nothing needs a cure\n");
}

static void report_json(const struct doctor *doctor) {
  static const char *const grades[] = {"good", "note", "bad"};
  struct json json;
  memset(&json, 0, sizeof json);
  json.out = stdout;
  json_open(&json, NULL, '{');
  json_number(&json, "version", 1);
  json_text(&json, "tutti", tutti_version());
  json_bool(&json, "good", bad_count(doctor) == 0);
  json_number(&json, "gpus", doctor->gpu_count);
  json_open(&json, "findings", '[');
  for (size_t i = 0; i < doctor->count; i++) {
    const struct doctor_finding *finding = &doctor->findings[i];
    json_open(&json, NULL, '{');
    json_text(&json, "grade", grades[finding->grade]);
    json_text(&json, "topic", finding->topic);
    json_text(&json, "text", finding->text);
    if (finding->cure) json_text(&json, "cure", finding->cure);
    json_close(&json, '}');
  }
  json_close(&json, ']');
  json_close(&json, '}');
}

/* ---- files */

static bool bytes_contain(const char *bytes, size_t count, const char *word) {
  return memmem(bytes, count, word, strlen(word)) != NULL;
}

void doctor_file_look(const struct doctor *doctor, const char *path, struct doctor_file *file) {
  struct stat here, built;
  char own[PATH_MAX + 16];
  memset(file, 0, sizeof *file);
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  if (fstat(fd, &here) == 0 && S_ISREG(here.st_mode) && here.st_size > 0) {
    const size_t bytes = (size_t)here.st_size;
    void *memory = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (memory != MAP_FAILED) {
      file->readable = true;
      file->is_nccl = bytes_contain((const char *)memory, bytes, "ncclGetVersion");
      file->is_ours = file->is_nccl && bytes_contain((const char *)memory, bytes, "tutti_backend");
      munmap(memory, bytes);
    }
    snprintf(own, sizeof own, "%s/libnccl.so.2", doctor->folder);
    file->is_this_build = *doctor->folder && stat(own, &built) == 0 && built.st_dev == here.st_dev &&
                          built.st_ino == here.st_ino;
  }
  close(fd);
}

/* The folder of this build's libraries, beside the command's. */
static void folder_find(struct doctor *doctor) {
  char path[PATH_MAX], trial[PATH_MAX + 32];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return;
  path[length] = '\0';
  for (int i = 0; i < 2; i++) {
    char *slash = strrchr(path, '/');
    if (!slash) return;
    *slash = '\0';
  }
  const int bytes = snprintf(trial, sizeof trial, "%s/lib/libnccl.so.2", path);
  if (bytes <= 0 || (size_t)bytes >= sizeof trial || access(trial, R_OK) != 0) return;
  if (strlen(path) + sizeof "/lib" <= sizeof doctor->folder) {
    strcpy(doctor->folder, path);
    strcat(doctor->folder, "/lib");
  }
}

/* ---- asking programs */

/* Reads until the other end closes, or the deadline passes; false then. */
static bool answer_read(int fd, uint64_t deadline_ns, char *answer) {
  size_t bytes = 0;
  for (;;) {
    const uint64_t now = os_time_ns();
    struct pollfd waiting = {fd, POLLIN, 0};
    if (now >= deadline_ns) return false;
    const int ready = poll(&waiting, 1, (int)((deadline_ns - now) / 1000000) + 1);
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    char rest[4096];
    const bool is_full = bytes == DOCTOR_ANSWER - 1;
    const ssize_t got =
        is_full ? read(fd, rest, sizeof rest) : read(fd, answer + bytes, DOCTOR_ANSWER - 1 - bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    if (!is_full) bytes += (size_t)got;
    answer[bytes] = '\0';
  }
}

int doctor_ask(char *const *arguments, const char *const *extras, unsigned seconds, char *answer) {
  static const char *const none[] = {NULL};
  int both[2], pid = 0, status = 0;
  sigset_t mask;
  answer[0] = '\0';
  sigemptyset(&mask);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0) return -1;
  if (pipe2(both, O_CLOEXEC) != 0) {
    close(nothing);
    return -1;
  }
  const struct child_plan plan = {arguments, extras ? extras : none, nothing, both[1], nothing, &mask, 0, 0,
                                  false};
  const int why = child_start(&plan, &pid);
  close(both[1]);
  close(nothing);
  if (why == 0 && !answer_read(both[0], os_time_ns() + seconds * NS_PER_SECOND, answer)) kill(pid, SIGKILL);
  close(both[0]);
  if (why != 0) return -1;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int doctor_ask_probe(const char *what, char *answer) {
  char own[] = "/proc/self/exe", verb[] = "doctor", flag[] = "--probe", copy[PATH_MAX];
  snprintf(copy, sizeof copy, "%s", what);
  char path[PATH_MAX];
  const ssize_t length = readlink(own, path, sizeof path - 1);
  if (length <= 0) return -1;
  path[length] = '\0';
  char *const arguments[] = {path, verb, flag, copy, NULL};
  return doctor_ask(arguments, NULL, 30, answer);
}

bool doctor_answer_find(const char *answer, const char *word, char *out, size_t out_bytes) {
  const size_t length = strlen(word);
  for (const char *line = answer; *line;) {
    const size_t bytes = strcspn(line, "\n");
    if (bytes > length && !strncmp(line, word, length) && line[length] == ' ') {
      snprintf(out, out_bytes, "%.*s", (int)(bytes - length - 1), line + length + 1);
      return true;
    }
    line += bytes + (line[bytes] == '\n');
  }
  return false;
}

/* ---- the verb */

static void doctor_examine(struct doctor *doctor, char *const *arguments) {
  folder_find(doctor);
  doctor_gpus(doctor);
  if (doctor->pid > 0) doctor_load_pid(doctor);
  else doctor_load(doctor, arguments);
  doctor_settings(doctor);
  doctor_system(doctor);
}

static enum exit_code doctor_report(struct doctor *doctor, const struct doctor_flags *flags) {
  if (doctor->out_of_memory) {
    fprintf(stderr, "tutti doctor: the report" LOG_OUT_OF_MEMORY "\n");
    return EXIT_ENVIRONMENT;
  }
  if (flags->json) report_json(doctor);
  else report_text(doctor, flags->quiet);
  return bad_count(doctor) > 0 ? EXIT_WRONG : EXIT_GOOD;
}

static void doctor_drop(struct doctor *doctor) {
  for (size_t i = 0; i < doctor->count; i++) {
    os_free(doctor->findings[i].text);
    os_free(doctor->findings[i].cure);
  }
  os_free(doctor->findings);
}

static bool pid_check(int pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  char byte;
  if (fd >= 0) {
    const ssize_t got = read(fd, &byte, 1);
    close(fd);
    if (got >= 0) return true;
  }
  fprintf(stderr, "tutti doctor: process %d cannot be looked at: %s\n", pid,
          errno == ENOENT ? "there is none" : strerror(errno));
  return false;
}

static enum exit_code doctor_run(int argc, char **argv) {
  struct doctor_flags flags;
  struct doctor doctor;
  int operand;
  memset(&flags, 0, sizeof flags);
  memset(&doctor, 0, sizeof doctor);
  enum exit_code code;
  if (!verb_parse(&options, argc, argv, &flags, &operand, &code)) return code;
  if (flags.probe) return (enum exit_code)doctor_probe(flags.probe);
  if (flags.pid > 0 && operand < argc) {
    fprintf(stderr, "tutti doctor: --pid and a program are two patients; ask for one at a time\n");
    return EXIT_USAGE;
  }
  doctor.pid = (int)flags.pid;
  if (doctor.pid > 0 && !pid_check(doctor.pid)) return EXIT_INPUT;
  doctor.findings = (struct doctor_finding *)os_alloc(DOCTOR_FINDINGS_MOST * sizeof *doctor.findings);
  if (doctor.findings) doctor_examine(&doctor, operand < argc ? argv + operand : NULL);
  else doctor.out_of_memory = true;
  code = doctor_report(&doctor, &flags);
  doctor_drop(&doctor);
  return code;
}

const struct verb verb_doctor = {
    "doctor",
    "report which libnccl a program loads, and what would not work",
    "[FLAGS] [PROGRAM [ARGUMENTS]]",
    "PROGRAM",
    "  tutti doctor python3 train.py\n"
    "  LD_PRELOAD=build/lib/libnccl.so.2 tutti doctor build/examples/init_all\n"
    "  tutti doctor --pid $$ --json\n",
    "Reports what the loader would do with PROGRAM, without running it: its libraries as the loader itself "
    "lists them, with LD_PRELOAD, LD_AUDIT, LD_LIBRARY_PATH and RPATH as they are set; for Python also "
    "PyTorch, CuPy and the NCCL wheel of the interpreter that would run; and what dlopen of libnccl.so.2 "
    "yields. Without PROGRAM: the last of these, and python3. With --pid: what the process has mapped, its "
    "variables and limits.\n"
    "\n"
    "Also reports the driver, the GPUs and how they reach each other, this machine's limits, and each NCCL_* "
    "and TUTTI_* setting that this library does not know or that changes how it works. A missing driver is "
    "reported, but is no error: the emulator is used.\n"
    "\n"
    "Options for programs that are linked with another libnccl or bring one:\n"
    "  LD_PRELOAD=.../lib/libnccl.so.2       works for every program that is not set-user-ID\n"
    "  LD_AUDIT=.../lib/libtutti-audit.so    also where a program opens its own file by its full path\n"
    "  LD_LIBRARY_PATH=.../lib               not where the program has an RPATH, as PyTorch's wheels have\n"
    "  share/tutti/wheel.py                  makes a wheel that replaces NVIDIA's\n"
    "\n"
    "The exit status is 1 if there is a problem; its line names the fix. Notes do not change it.\n",
    &options,
    doctor_run,
};
