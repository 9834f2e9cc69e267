/* fuzz_survey.c: any bytes as the processes' answers about their records: read, diagnosed, and reduced to the
 * size of a message, which must give readable files. */
/* sources: core/stall/survey_read.c trace/record_read trace/record_image trace/record_text explain/ base/ */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "core/stall/survey.h"
#include "explain/diagnose.h"
#include "trace/record_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define IMAGE_BYTES (RECORD_PAGE_BYTES + RECORD_IMAGE_BYTES_LEAST)

static void image_try(const struct record_file *file, const struct record_view *view) {
  struct record_file second;
  uint8_t *image = (uint8_t *)os_alloc(IMAGE_BYTES);
  if (image == NULL) abort();
  memcpy(image, file->bytes, sizeof file->header);
  const uint32_t bytes =
      record_image_section(view, image + RECORD_PAGE_BYTES, IMAGE_BYTES - RECORD_PAGE_BYTES);
  if (bytes == 0 || bytes % RECORD_PAGE_BYTES != 0 || bytes > RECORD_IMAGE_BYTES_LEAST) abort();
  ((struct record_header *)(void *)image)->used_bytes = RECORD_PAGE_BYTES + bytes;
  if (record_file_read("image", image, RECORD_PAGE_BYTES + bytes, NULL, &second) != ncclSuccess) abort();
  if (second.view_count != 1 || second.views[0].end - second.views[0].first > view->end - view->first)
    abort();
  record_file_free(&second);
  os_free(image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct diagnosis diagnosis;
  struct survey survey;
  uint32_t refused;
  uint8_t *bytes = (uint8_t *)os_alloc(size); /* aligned */
  if (bytes == NULL) abort();
  if (size > 0) memcpy(bytes, data, size);
  if (!survey_read(bytes, size, &survey, &refused)) abort();
  if (!diagnose_files(survey.files, survey.file_count, &diagnosis)) abort();
  for (uint32_t i = 0; i < survey.silent_count; i++)
    if (strlen(survey_why_text(survey.silents[i].why)) == 0) abort();
  for (uint32_t i = 0; i < survey.file_count; i++)
    for (uint32_t k = 0; k < survey.files[i].view_count; k++)
      image_try(&survey.files[i], &survey.files[i].views[k]);
  survey_free(&survey);
  os_free(bytes);
  return 0;
}
