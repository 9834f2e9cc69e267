/* own_diagnosis.c: diagnoses a copy of this process's own records, as `tutti explain` would its file. */
#include "core/stall/own_diagnosis.h"

#include <stdio.h>

#include "base/os.h"
#include "explain/diagnose.h"
#include "trace/recorder.h"

static bool comm_is_open(const struct record_file *file, uint64_t comm_id) {
  for (uint32_t i = 0; i < file->view_count; i++)
    if (file->views[i].comm->comm_id == comm_id && file->views[i].comm->state == RECORD_OPEN) return true;
  return false;
}

/* What hangs now is not due to a communicator that all ranks have destroyed or aborted, for example that of
 * an earlier test of this process. */
static void file_drop_ended(struct record_file *file) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < file->view_count; i++) {
    const struct record_view view = file->views[i];
    if (comm_is_open(file, view.comm->comm_id)) file->views[kept++] = view;
  }
  file->view_count = kept;
}

/* Its ranks are all of this process, so the number of that, which differs from run to run, is left out. What
 * ranks of other processes do is not known here. */
static void file_diagnose(const void *bytes, size_t byte_count, char *out, size_t out_bytes) {
  struct record_file file;
  struct diagnosis diagnosis;
  if (record_file_read("own", bytes, byte_count, NULL, &file) != ncclSuccess) return;
  file.header.host[0] = '\0';
  file_drop_ended(&file);
  if (diagnose_files(&file, 1, &diagnosis) && diagnosis.kind > DIAGNOSIS_FAILED &&
      diagnosis.kind != DIAGNOSIS_ABSENT)
    snprintf(out, out_bytes, "%s", diagnosis.sentence);
  record_file_free(&file);
}

void own_diagnosis(char *out, size_t out_bytes) {
  struct record_header header;
  out[0] = '\0';
  if (recorder_copy(0, &header, sizeof header) != sizeof header) return;
  void *bytes = os_alloc(header.used_bytes);
  if (bytes == NULL) return;
  file_diagnose(bytes, recorder_copy(0, bytes, header.used_bytes), out, out_bytes);
  os_free(bytes);
}
