/* doctor_load.c: which libnccl a program would load, or a process has loaded. It asks the loader instead of
 * imitating it: the loader lists a file's libraries in the same environment. For libraries that a program
 * loads by name, a child process loads them. */
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "doctor/doctor.h"

#define NCCL "libnccl.so"

/* ---- words about a library */

/* Whether a list of files or folders, separated by colons or blanks, contains this file or its folder. */
static bool list_has(const char *list, const char *path, bool folders) {
  struct stat wanted, each;
  char item[PATH_MAX];
  char folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%s", path);
  char *slash = strrchr(folder, '/');
  if (folders && slash) *slash = '\0';
  if (!list || stat(folders ? folder : path, &wanted) != 0) return false;
  while (*list) {
    const size_t bytes = strcspn(list, ": ");
    snprintf(item, sizeof item, "%.*s", (int)bytes, list);
    if (bytes > 0 && stat(item, &each) == 0 && each.st_dev == wanted.st_dev && each.st_ino == wanted.st_ino)
      return true;
    list += bytes + (list[bytes] != '\0');
  }
  return false;
}

static const char *method_name(const char *path) {
  const char *audit = os_env("LD_AUDIT");
  if (list_has(os_env("LD_PRELOAD"), path, false)) return "by LD_PRELOAD";
  if (audit && strstr(audit, "libtutti-audit")) return "by LD_AUDIT";
  if (list_has(os_env("LD_LIBRARY_PATH"), path, true)) return "by LD_LIBRARY_PATH";
  if (strstr(path, "/nvidia/nccl/lib/")) return "the file of Python's wheel, by the program's RPATH";
  return "by RPATH, RUNPATH or the system's list";
}

static void cure_write(const struct doctor *doctor, char *cure, size_t bytes) {
  if (*doctor->folder)
    snprintf(cure, bytes, "LD_PRELOAD=%s/libnccl.so.2, or LD_AUDIT=%s/libtutti-audit.so", doctor->folder,
             doctor->folder);
  else snprintf(cure, bytes, "set LD_PRELOAD to tutti's libnccl.so.2, or LD_AUDIT to its libtutti-audit.so");
}

/* libtutti-cuda.so must be beside our libnccl. */
static void companion_check(struct doctor *doctor, const char *path) {
  char beside[PATH_MAX + 32], real[PATH_MAX];
  if (!realpath(path, real)) return;
  char *slash = strrchr(real, '/');
  if (!slash) return;
  *slash = '\0';
  snprintf(beside, sizeof beside, "%s/libtutti-cuda.so", real);
  if (access(beside, R_OK) == 0)
    doctor_add(doctor, DOCTOR_GOOD, "library", NULL, "its half for GPUs is there: %s", beside);
  else
    doctor_add(doctor, doctor->gpu_count > 0 ? DOCTOR_BAD : DOCTOR_NOTE, "library",
               "build where nvcc is (`scons`), and keep libtutti-cuda.so in the folder of libnccl.so.2",
               "%s has no libtutti-cuda.so beside libnccl.so.2: no GPU can be used", real);
}

/* The backend that the library itself chooses, in a process of its own. */
static void backend_check(struct doctor *doctor, const char *answer) {
  char backend[32], why[DOCTOR_TEXT / 2] = "";
  if (!doctor_answer_find(answer, "backend", backend, sizeof backend)) return;
  doctor_answer_find(answer, "why", why, sizeof why);
  if (!strcmp(backend, "none"))
    doctor_add(doctor, DOCTOR_BAD, "library", "unset TUTTI_BACKEND, or mend what the sentence names",
               "it finds no backend: %s", why);
  else if (!strcmp(backend, "cuda"))
    doctor_add(doctor, DOCTOR_GOOD, "library", NULL, "it would use the GPUs");
  else if (doctor->gpu_count > 0)
    doctor_add(doctor, DOCTOR_BAD, "library", "unset TUTTI_BACKEND; NCCL_DEBUG=INFO says why it is so chosen",
               "it would use the emulator, though GPUs are here");
  else
    doctor_add(doctor, DOCTOR_NOTE, "library", NULL, "it would use the emulator: no GPU is needed for that");
}

static void api_write(const char *answer, char *text, size_t bytes) {
  char number[32] = "";
  const long code = doctor_answer_find(answer, "api", number, sizeof number) ? atol(number) : 0;
  if (code <= 0) snprintf(text, bytes, "it does not report its version");
  else snprintf(text, bytes, "NCCL API %ld.%ld.%ld", code / 10000, code / 100 % 100, code % 100);
}

/* Adds a finding about the library that `who` gets. */
static void library_diagnose(struct doctor *doctor, const char *who, const char *path, const char *method) {
  struct doctor_file file;
  char cure[2 * PATH_MAX + 128], api[64], *answer = (char *)os_alloc(DOCTOR_ANSWER);
  doctor_file_look(doctor, path, &file);
  cure_write(doctor, cure, sizeof cure);
  if (!answer) {
    doctor->out_of_memory = true;
    return;
  }
  const bool loads = file.is_nccl && doctor_ask_probe(path, answer) == 0;
  api_write(answer, api, sizeof api);
  if (!file.readable) doctor_add(doctor, DOCTOR_BAD, "library", cure, "%s: %s cannot be read", who, path);
  else if (!file.is_nccl)
    doctor_add(doctor, DOCTOR_BAD, "library", cure, "%s gets %s, which is no NCCL library", who, path);
  else if (!file.is_ours)
    doctor_add(doctor, DOCTOR_BAD, "library", cure, "%s gets another library: %s (%s), %s", who, path, api,
               method);
  else if (!loads)
    doctor_add(doctor, DOCTOR_BAD, "library", "rebuild it on this machine; `ldd -r` names what it lacks",
               "%s gets tutti: %s, which does not load", who, path);
  else
    doctor_add(doctor, DOCTOR_GOOD, "library", NULL, "%s gets tutti%s: %s (%s), %s", who,
               file.is_this_build ? "" : " of another build", path, api, method);
  if (file.is_ours && loads) {
    companion_check(doctor, path);
    backend_check(doctor, answer);
  }
  os_free(answer);
}

/* ---- what the loader lists */

/* The path of a program, as a shell finds it. */
static bool program_find(const char *name, char *path, size_t bytes) {
  const char *list = os_env("PATH");
  if (strchr(name, '/')) {
    snprintf(path, bytes, "%s", name);
    return access(path, R_OK) == 0;
  }
  while (list && *list) {
    const size_t length = strcspn(list, ":");
    snprintf(path, bytes, "%.*s/%s", length > 0 ? (int)length : 1, length > 0 ? list : ".", name);
    if (access(path, X_OK) == 0) return true;
    list += length + (list[length] == ':');
  }
  return false;
}

/* The program that runs a script: from its first line, or the argument of `env`; false: not a script. */
static bool interpreter_find(const char *path, char *out, size_t bytes) {
  char line[1024], first[512] = "", second[512] = "";
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const ssize_t got = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
  if (fd >= 0) close(fd);
  if (got < 3 || line[0] != '#' || line[1] != '!') return false;
  line[got] = '\0';
  line[strcspn(line, "\n")] = '\0';
  if (sscanf(line + 2, " %511s %511s", first, second) < 1) return false;
  const char *slash = strrchr(first, '/');
  const bool is_env = slash && !strcmp(slash, "/env") && *second;
  return program_find(is_env ? second : first, out, bytes);
}

/* The loader that a 64-bit program names; false: it names none. */
static bool loader_find(const char *path, char *out, size_t bytes) {
  Elf64_Ehdr head;
  bool found = false;
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  if (pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head && !memcmp(head.e_ident, ELFMAG, SELFMAG) &&
      head.e_ident[EI_CLASS] == ELFCLASS64 && head.e_phentsize == sizeof(Elf64_Phdr)) {
    for (unsigned i = 0; i < head.e_phnum && !found; i++) {
      Elf64_Phdr part;
      if (pread(fd, &part, sizeof part, (off_t)(head.e_phoff + i * sizeof part)) != (ssize_t)sizeof part)
        break;
      if (part.p_type != PT_INTERP || part.p_filesz == 0 || part.p_filesz >= bytes) continue;
      found = pread(fd, out, part.p_filesz, (off_t)part.p_offset) == (ssize_t)part.p_filesz;
      out[part.p_filesz] = '\0';
    }
  }
  close(fd);
  return found;
}

/* The path of libnccl in a line of the loader's list, or "not found"; false: the line is about another file.
 */
static bool line_take(const char *line, size_t length, char *path, size_t bytes) {
  char text[2 * PATH_MAX];
  snprintf(text, sizeof text, "%.*s", (int)length, line);
  char *address = strstr(text, " (0x");
  if (address) *address = '\0';
  char *begin = text + strspn(text, " \t");
  char *arrow = strstr(begin, " => ");
  const char *name = strrchr(begin, '/');
  const bool is_named =
      !strncmp(begin, NCCL, strlen(NCCL)) || (name && !strncmp(name + 1, NCCL, strlen(NCCL)));
  if (!is_named) return false;
  snprintf(path, bytes, "%s", arrow ? arrow + 4 : begin);
  return true;
}

/* 1: the loader finds libnccl at `path`; 0: the file needs none; -1: it needs one that is not found; -2: the
 * file cannot be listed. */
static int list_ask(const char *file, char *path, size_t bytes) {
  static const char *const extras[] = {"LD_TRACE_LOADED_OBJECTS=1",
                                       NULL}; /* the loader lists the libraries and exits */
  char loader[PATH_MAX], own[] = "/proc/self/exe", copy[PATH_MAX];
  char *answer = (char *)os_alloc(DOCTOR_ANSWER);
  int diagnosis = 0;
  if (!answer) return -2;
  snprintf(copy, sizeof copy, "%s", file);
  struct stat kind;
  if (stat(file, &kind) != 0 || !S_ISREG(kind.st_mode)) diagnosis = -2; /* the loader would block on a pipe */
  if (!loader_find(file, loader, sizeof loader) && !loader_find(own, loader, sizeof loader)) diagnosis = -2;
  char *const arguments[] = {loader, copy, NULL};
  if (diagnosis == 0 && doctor_ask(arguments, extras, 60, answer) != 0 && !strstr(answer, "=>"))
    diagnosis = -2;
  for (const char *line = answer; diagnosis == 0 && *line;) {
    const size_t length = strcspn(line, "\n");
    if (line_take(line, length, path, bytes)) diagnosis = strcmp(path, "not found") ? 1 : -1;
    line += length + (line[length] == '\n');
  }
  os_free(answer);
  return diagnosis;
}

/* Reports the library that `file` is linked with; returns as list_ask. */
static int linked_diagnose(struct doctor *doctor, const char *who, const char *file) {
  char path[PATH_MAX], cure[2 * PATH_MAX + 128];
  const int found = list_ask(file, path, sizeof path);
  if (found == 0) return 0;
  cure_write(doctor, cure, sizeof cure);
  if (found == 1) library_diagnose(doctor, who, path, method_name(path));
  else if (found == -1)
    doctor_add(doctor, DOCTOR_BAD, "library", cure, "%s needs libnccl.so.2, and the loader finds none", who);
  else doctor_add(doctor, DOCTOR_NOTE, "library", NULL, "the loader cannot list the libraries of %s", file);
  return found;
}

static void named_diagnose(struct doctor *doctor, const char *who) {
  char path[PATH_MAX], cure[2 * PATH_MAX + 128], *answer = (char *)os_alloc(DOCTOR_ANSWER);
  if (!answer) {
    doctor->out_of_memory = true;
    return;
  }
  cure_write(doctor, cure, sizeof cure);
  doctor_ask_probe("libnccl.so.2", answer);
  if (doctor_answer_find(answer, "path", path, sizeof path))
    library_diagnose(doctor, who, path, method_name(path));
  else doctor_add(doctor, DOCTOR_BAD, "library", cure, "%s finds no libnccl.so.2", who);
  os_free(answer);
}

/* ---- Python */

static const char python_code[] =
    "import glob, importlib.util, os, sys\n"
    "print('python', os.path.realpath(sys.executable))\n"
    "def folders(name):\n"
    "    try:\n"
    "        spec = importlib.util.find_spec(name)\n"
    "    except Exception:\n"
    "        return []\n"
    "    return list(spec.submodule_search_locations or []) if spec else []\n"
    "for kind, name, pattern in (('wheel', 'nvidia.nccl', 'lib/libnccl.so.2'),\n"
    "                            ('torch', 'torch', 'lib/libtorch_cuda.so'),\n"
    "                            ('cupy', 'cupy_backends', 'cuda/libs/nccl*.so')):\n"
    "    for folder in folders(name):\n"
    "        for path in sorted(glob.glob(os.path.join(glob.escape(folder), pattern))):\n"
    "            print(kind, path)\n";

static void wheel_diagnose(struct doctor *doctor, const char *path) {
  struct doctor_file file;
  doctor_file_look(doctor, path, &file);
  if (file.is_ours) {
    doctor_add(doctor, DOCTOR_GOOD, "library", NULL, "Python's wheel of NCCL holds tutti: %s", path);
    companion_check(doctor, path);
  } else {
    doctor_add(doctor, DOCTOR_NOTE, "library", NULL,
               "Python's wheel of NCCL is NVIDIA's: %s; share/tutti/wheel.py makes one to install over it",
               path);
  }
}

/* `python` may be a script that finds the interpreter; then it is replaced by sys.executable. True if PyTorch
 * is installed: a later load of the library by name then gets PyTorch's. */
static bool python_diagnose(struct doctor *doctor, char *python, size_t bytes) {
  int torch = 0;
  char interpreter[PATH_MAX], flag[] = "-c", path[PATH_MAX], *answer = (char *)os_alloc(DOCTOR_ANSWER);
  char *code = os_strdup(python_code);
  snprintf(interpreter, sizeof interpreter, "%s", python);
  char *const arguments[] = {interpreter, flag, code, NULL};
  if (!answer || !code) doctor->out_of_memory = true;
  else if (doctor_ask(arguments, NULL, 60, answer) != 0)
    doctor_add(doctor, DOCTOR_NOTE, "library", NULL, "%s does not answer; its packages are not looked at",
               python);
  else {
    if (doctor_answer_find(answer, "torch", path, sizeof path)) {
      torch = linked_diagnose(doctor, "PyTorch", path);
      if (torch == 0)
        doctor_add(doctor, DOCTOR_NOTE, "library", NULL,
                   "PyTorch of %s has NCCL inside, or none: no method of loading reaches it", python);
    }
    if (doctor_answer_find(answer, "cupy", path, sizeof path)) linked_diagnose(doctor, "CuPy", path);
    if (doctor_answer_find(answer, "wheel", path, sizeof path)) wheel_diagnose(doctor, path);
    if (doctor_answer_find(answer, "python", path, sizeof path)) snprintf(python, bytes, "%s", path);
  }
  os_free(answer);
  os_free(code);
  return torch == 1;
}

/* ---- the inspected program or process */

/* Reports files in LD_PRELOAD and LD_AUDIT that do not exist: the loader ignores them. */
static void lists_check(struct doctor *doctor, const char *variable) {
  char item[PATH_MAX], cure[PATH_MAX + 64];
  const char *list = os_env(variable);
  while (list && *list) {
    const size_t bytes = strcspn(list, ": ");
    snprintf(item, sizeof item, "%.*s", (int)bytes, list);
    snprintf(cure, sizeof cure, "name a file that is there, with its full path, in %s", variable);
    if (strchr(item, '/') && access(item, R_OK) != 0)
      doctor_add(doctor, DOCTOR_BAD, "library", cure, "%s names %s, which is not there", variable, item);
    list += bytes + (list[bytes] != '\0');
  }
}

static bool is_python(const char *path) {
  const char *slash = strrchr(path, '/');
  return !strncmp(slash ? slash + 1 : path, "python", 6);
}

void doctor_load(struct doctor *doctor, char *const *arguments) {
  char path[PATH_MAX], next[PATH_MAX];
  lists_check(doctor, "LD_PRELOAD");
  lists_check(doctor, "LD_AUDIT");
  if (!arguments) {
    if (program_find("python3", path, sizeof path)) python_diagnose(doctor, path, sizeof path);
    named_diagnose(doctor, "a program that asks for libnccl.so.2");
    return;
  }
  if (!program_find(arguments[0], path, sizeof path)) {
    doctor_add(doctor, DOCTOR_BAD, "library", "check its name and the variable PATH",
               "there is no program %s", arguments[0]);
    return;
  }
  for (int i = 0; i < 4 && !is_python(path) && interpreter_find(path, next, sizeof next); i++)
    strcpy(path, next);
  if (is_python(path) && python_diagnose(doctor, path, sizeof path)) return;
  const int linked = linked_diagnose(doctor, arguments[0], path);
  if (linked == 0 || linked == -2) {
    char who[PATH_MAX];
    snprintf(who, sizeof who, "%s, when it asks for libnccl.so.2 by name,", arguments[0]);
    named_diagnose(doctor, who);
  }
}

static bool is_same_file(const char *a, const char *b) {
  struct stat first, second;
  return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

/* The next libnccl in a process's maps that differs from the previous one; false at the end. */
static bool mapped_next(const char **rest, char *path, size_t bytes) {
  char found[PATH_MAX];
  while (**rest) {
    const size_t length = strcspn(*rest, "\n");
    const char *begin = (const char *)memchr(*rest, '/', length);
    snprintf(found, sizeof found, "%.*s", begin ? (int)(length - (size_t)(begin - *rest)) : 0,
             begin ? begin : "");
    *rest += length + ((*rest)[length] == '\n');
    const char *slash = strrchr(found, '/');
    if (!slash || strncmp(slash + 1, NCCL, strlen(NCCL)) || !strcmp(found, path)) continue;
    snprintf(path, bytes, "%s", found);
    return true;
  }
  return false;
}

/* LD_PRELOAD of the process, "" if it has none. */
static void preload_of(int pid, char *list, size_t list_bytes) {
  static const char name[] = "LD_PRELOAD=";
  char path[64];
  size_t bytes = 0;
  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  char *all = os_file_read(path, &bytes);
  list[0] = '\0';
  for (size_t at = 0; all && at < bytes; at += strlen(all + at) + 1) {
    if (!strncmp(all + at, name, sizeof name - 1))
      snprintf(list, list_bytes, "%s", all + at + sizeof name - 1);
  }
  os_free(all);
}

static void mapped_diagnose(struct doctor *doctor, const char *who, const char *mapped, const char *method) {
  char path[PATH_MAX], seen[PATH_MAX + 32];
  snprintf(path, sizeof path, "%s", mapped);
  char *gone = strstr(path, " (deleted)");
  if (gone) {
    *gone = '\0';
    doctor_add(doctor, DOCTOR_NOTE, "library", NULL, "%s was replaced since %s loaded it", path, who);
  }
  snprintf(seen, sizeof seen, "/proc/%d/root%s", doctor->pid, path);
  library_diagnose(doctor, who, is_same_file(seen, path) || access(seen, R_OK) != 0 ? path : seen, method);
}

/* PyTorch maps its wheel's file by path, in addition to the one of LD_PRELOAD, which it calls. */
void doctor_load_pid(struct doctor *doctor) {
  char name[64], who[64], path[PATH_MAX] = "", preload[DOCTOR_TEXT];
  bool preloaded = false;
  int found = 0;
  snprintf(name, sizeof name, "/proc/%d/maps", doctor->pid);
  snprintf(who, sizeof who, "process %d", doctor->pid);
  preload_of(doctor->pid, preload, sizeof preload);
  char *maps = os_file_read(name, NULL);
  for (const char *rest = maps ? maps : ""; mapped_next(&rest, path, sizeof path); found++)
    preloaded = preloaded || list_has(preload, path, false);
  path[0] = '\0';
  for (const char *rest = maps ? maps : ""; mapped_next(&rest, path, sizeof path);) {
    if (!preloaded || list_has(preload, path, false)) mapped_diagnose(doctor, who, path, "mapped now");
    else
      doctor_add(doctor, DOCTOR_NOTE, "library", NULL,
                 "%s has %s mapped too, and calls the one of LD_PRELOAD", who, path);
  }
  os_free(maps);
  if (found == 0)
    doctor_add(doctor, DOCTOR_BAD, "library", "ask again when it has made its first communicator",
               "%s has no libnccl mapped", who);
  if (found > 1 && !preloaded)
    doctor_add(doctor, DOCTOR_BAD, "library", "keep one of them: LD_PRELOAD, LD_AUDIT or the wheel",
               "%s has %d of them mapped", who, found);
}
