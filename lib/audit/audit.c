/* audit.c: libtutti-audit.so, an auditor for the dynamic loader (LD_AUDIT, rtld-audit(7)). A request for
 * libnccl.so or libnccl.so.2, by name or by path, linked or through dlopen, is redirected to the libnccl.so.2
 * in this file's folder. This works also if the program's DT_RPATH, which LD_LIBRARY_PATH cannot override,
 * names another library. If the folder has no libnccl.so.2, nothing changes. */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME "libnccl.so"
#define NAME_BYTES (sizeof NAME - 1)

static char ours[PATH_MAX]; /* path of our libnccl.so.2, "" if there is none */

/* Matches libnccl.so, libnccl.so.2 and libnccl.so.2.x.y; another major version is another library. */
static int is_nccl(const char *path) {
  const char *slash = strrchr(path, '/');
  const char *name = slash ? slash + 1 : path;
  if (strncmp(name, NAME, NAME_BYTES) != 0) return 0;
  const char *rest = name + NAME_BYTES;
  return !*rest || !strcmp(rest, ".2") || !strncmp(rest, ".2.", 3);
}

unsigned la_version(unsigned version) {
  Dl_info here;
  memset(&here, 0, sizeof here);
  const int found = dladdr((const void *)(uintptr_t)la_version, &here);
  const char *slash = found && here.dli_fname ? strrchr(here.dli_fname, '/') : NULL;
  const int length =
      slash ? snprintf(ours, sizeof ours, "%.*s/libnccl.so.2", (int)(slash - here.dli_fname), here.dli_fname)
            : 0;
  if (length <= 0 || (size_t)length >= sizeof ours || access(ours, R_OK) != 0) ours[0] = '\0';
  return version < LAV_CURRENT ? version : LAV_CURRENT;
}

char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag) {
  (void)cookie;
  return flag == LA_SER_ORIG && *ours && is_nccl(name) ? ours : (char *)(uintptr_t)name;
}
