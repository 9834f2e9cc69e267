/* test_survey.c: the records that processes send each other, and the parts of files that `explain` keeps:
 * small, and enough for the same diagnoses; and that a survey with arbitrary bytes is read safely. */
#include <dirent.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/os.h"
#include "core/stall/survey.h"
#include "explain/diagnose.h"
#include "files/digest.h"
#include "schedule/work.h"
#include "trace/record_image.h"
#include "trace/record_text.h"

#define FILES_MOST 8
#define IMAGE_BYTES (1u << 20)

/* ---- images of files ---- */

struct job {
  struct record_file files[FILES_MOST], images[FILES_MOST], digests[FILES_MOST];
  void *bytes[FILES_MOST], *digest_bytes[FILES_MOST];
  uint8_t *image_bytes[FILES_MOST];
  uint32_t count;
};

/* The file, reduced as a process does that is asked for its records. */
static void image_make(const struct record_file *file, uint8_t *out, struct record_file *image) {
  size_t used = RECORD_PAGE_BYTES;
  memcpy(out, file->bytes, RECORD_PAGE_BYTES);
  for (uint32_t i = 0; i < file->view_count; i++)
    used += record_image_section(&file->views[i], out + used, RECORD_IMAGE_BYTES_LEAST);
  ((struct record_header *)(void *)out)->used_bytes = used;
  assert_true(used <= IMAGE_BYTES);
  assert_int_equal(record_file_read("image", out, used, NULL, image), ncclSuccess);
  assert_int_equal(image->view_count, file->view_count);
}

static void job_add(struct job *job, const char *path) {
  size_t text_bytes = 0, byte_count = 0;
  char *text = os_file_read(path, &text_bytes);
  assert_non_null(text);
  assert_true(job->count < FILES_MOST);
  const uint32_t i = job->count++;
  assert_int_equal(record_text_pack(path, text, text_bytes, &job->bytes[i], &byte_count), ncclSuccess);
  os_free(text);
  assert_int_equal(record_file_read(path, job->bytes[i], byte_count, NULL, &job->files[i]), ncclSuccess);
  job->image_bytes[i] = (uint8_t *)os_alloc(IMAGE_BYTES);
  image_make(&job->files[i], job->image_bytes[i], &job->images[i]);
  job->digest_bytes[i] = digest_make(&job->files[i], &job->digests[i]);
  assert_non_null(job->digest_bytes[i]);
}

static void job_free(struct job *job) {
  for (uint32_t i = 0; i < job->count; i++) {
    record_file_free(&job->files[i]);
    record_file_free(&job->images[i]);
    record_file_free(&job->digests[i]);
    os_free(job->bytes[i]);
    os_free(job->digest_bytes[i]);
    os_free(job->image_bytes[i]);
  }
  memset(job, 0, sizeof *job);
}

static void diagnose_both(const char *name, const struct job *job, const struct record_file *files) {
  static struct diagnosis whole, small;
  assert_true(diagnose_files(job->files, job->count, &whole));
  assert_true(diagnose_files(files, job->count, &small));
  if (strcmp(whole.sentence, small.sentence) != 0) print_error("%s\n", name);
  assert_string_equal(small.sentence, whole.sentence);
  assert_string_equal(small.next, whole.next);
  assert_int_equal(small.evidence_count, whole.evidence_count);
  for (uint32_t i = 0; i < whole.evidence_count; i++)
    assert_string_equal(small.evidence[i], whole.evidence[i]);
}

static void test_images_give_the_same_diagnosis(void **state) {
  static struct job job;
  uint32_t tried = 0;
  (void)state;
  DIR *all = opendir("traces");
  assert_non_null(all);
  for (const struct dirent *entry = readdir(all); entry != NULL; entry = readdir(all)) {
    char folder[512], path[1024];
    if (entry->d_name[0] == '.' || strchr(entry->d_name, '.') != NULL) continue;
    snprintf(folder, sizeof folder, "traces/%s", entry->d_name);
    DIR *one = opendir(folder);
    if (one == NULL) continue;
    for (const struct dirent *file = readdir(one); file != NULL; file = readdir(one)) {
      if (strstr(file->d_name, ".txt") == NULL) continue;
      snprintf(path, sizeof path, "%s/%s", folder, file->d_name);
      job_add(&job, path);
    }
    closedir(one);
    diagnose_both(folder, &job, job.images);
    diagnose_both(folder, &job, job.digests);
    job_free(&job);
    tried += 1;
  }
  closedir(all);
  assert_true(tried > 10);
}

/* ---- an image's limits ---- */

#define RING 4096u
#define LANES 512u

struct section {
  struct record_comm comm;
  uint8_t gap[RECORD_COMM_BYTES - sizeof(struct record_comm)];
  struct record_lane lanes[LANES];
  union record ring[RING];
};

static struct {
  union {
    struct record_header header;
    uint8_t page[RECORD_PAGE_BYTES];
  } begin;
  struct section section;
  uint8_t gap[RECORD_PAGE_BYTES];
} whole;

/* A file of one communicator with `calls` calls, each with a place and a launch, of which `ended` have ended.
 */
static void whole_make(uint32_t calls, uint32_t ended, struct record_file *file) {
  struct record_comm *comm = &whole.section.comm;
  memset(&whole, 0, sizeof whole);
  memcpy(whole.begin.header.magic, RECORD_MAGIC, 8);
  whole.begin.header.version = RECORD_VERSION;
  whole.begin.header.byte_order = RECORD_BYTE_ORDER;
  whole.begin.header.header_bytes = RECORD_PAGE_BYTES;
  whole.begin.header.record_bytes = RECORD_BYTES;
  comm->section.kind = RECORD_SECTION_COMM;
  comm->section.bytes = (sizeof whole.section + RECORD_PAGE_BYTES - 1) & ~(uint64_t)(RECORD_PAGE_BYTES - 1);
  whole.begin.header.used_bytes = RECORD_PAGE_BYTES + comm->section.bytes;
  comm->rank_count = 2;
  comm->counts = 1;
  comm->lane_rows = LANES;
  comm->lane_offset = offsetof(struct section, lanes);
  comm->ring_records = RING;
  comm->ring_offset = offsetof(struct section, ring);
  comm->calls = comm->launched = comm->started = calls;
  comm->ended = ended;
  comm->streams[1] = 0x1234;
  for (uint32_t i = 0; i < calls; i++) {
    union record *at = whole.section.ring;
    at[(3 * i) % RING].call = (struct record_call){
        .kind = RECORD_CALL, .func = FUNC_ALL_REDUCE, .count = 8, .sequence = i, .collective = i};
    at[(3 * i + 1) % RING].place = (struct record_place){.kind = RECORD_PLACE, .in = 0xdead, .out = 0xbeef};
    at[(3 * i + 2) % RING].launch =
        (struct record_launch){.kind = RECORD_LAUNCH, .operations = 1, .sequence = i, .number = i};
  }
  comm->tail = 3 * (uint64_t)calls;
  assert_int_equal(record_file_read("whole", &whole, RECORD_PAGE_BYTES + comm->section.bytes, NULL, file),
                   ncclSuccess);
  assert_int_equal(file->view_count, 1);
}

static void test_image_is_small(void **state) {
  static uint8_t out[RECORD_IMAGE_BYTES_LEAST] __attribute__((aligned(8)));
  struct record_file file;
  (void)state;
  whole_make(1000, 999, &file);
  const struct record_comm *comm = (const struct record_comm *)(const void *)out;
  assert_true(record_image_section(&file.views[0], out, sizeof out) <= 2 * RECORD_PAGE_BYTES);
  assert_int_equal(comm->streams[1], 0); /* no address of the process */
  record_file_free(&file);
  whole_make(1300, 0, &file); /* as many as its ring has space for, none of which has ended */
  for (uint32_t i = 0; i < LANES; i++) whole.section.lanes[i].used = 1;
  memset(out, 0, sizeof out);
  assert_true(record_image_section(&file.views[0], out, sizeof out) <= sizeof out);
  assert_int_equal(comm->lane_rows, LANES);
  assert_true(comm->ring_records >= 512);
  assert_int_equal(comm->tail, 3 * comm->ring_records); /* full, and the first records are overwritten */
  uint32_t places = 0;
  for (uint32_t i = 0; i < comm->ring_records; i++) {
    const union record *record = (const union record *)(const void *)(out + comm->ring_offset + 32 * i);
    if (record->kind != RECORD_PLACE) continue;
    places += 1;
    assert_int_equal(record->place.in, 0); /* no address of the process */
  }
  assert_in_range(places, 1, 64); /* of the calls that a diagnosis names */
  record_file_free(&file);
}

/* Messages are counted from the first one on both sides, or, if records are lost, only those that have not
 * ended: an image with fewer records says so. */
static void test_image_tells_of_gaps(void **state) {
  static uint8_t out[2][IMAGE_BYTES] __attribute__((aligned(8)));
  static struct diagnosis diagnosis;
  struct record_file file, images[2];
  (void)state;
  for (uint32_t rank = 0; rank < 2; rank++) { /* rank 0 sends to rank 1, which also receives from rank 2 */
    const uint32_t calls = rank == 0 ? 100 : 199;
    whole_make(calls, calls - 1, &file);
    whole.section.comm.rank = rank;
    whole.section.comm.rank_count = 3;
    whole.section.comm.topology_digest = 1;
    for (uint32_t i = 0; i < calls; i++) {
      struct record_call *call = &whole.section.ring[3 * i].call;
      call->func = rank == 0 ? FUNC_SEND : FUNC_RECV;
      call->peer = rank == 0 ? 1 : i % 2 == 0 ? 0 : 2;
      call->collective = 0;
    }
    image_make(&file, out[rank], &images[rank]);
    assert_true(images[rank].views[0].first > 0);
    record_file_free(&file);
  }
  assert_true(diagnose_files(images, 2, &diagnosis));
  assert_int_equal(diagnosis.kind, DIAGNOSIS_RUNNING); /* the last messages match */
  for (uint32_t rank = 0; rank < 2; rank++) record_file_free(&images[rank]);
}

static void test_digest_keeps_order(void **state) {
  struct record_file file, digest;
  (void)state;
  whole_make(1400, 0, &file); /* 4,200 records: the ring of 4,096 has lost the first 104 */
  assert_int_equal(file.views[0].first, 104);
  void *bytes = digest_make(&file, &digest);
  const struct record_view *view = &digest.views[0];
  assert_non_null(bytes);
  assert_int_equal(digest.view_count, 1);
  assert_int_equal(view->lane_rows, LANES);
  assert_int_not_equal(view->first, 0);
  uint32_t others = 0, places = 0;
  for (uint64_t i = 0; i < view->end - view->first; i++) {
    const union record *record = record_at(view, view->first + i);
    const uint32_t at = others;
    if (record->kind == RECORD_PLACE) places += 1;
    else others += 1;
    if (record->kind == RECORD_PLACE)
      assert_int_equal(record_at(view, view->first + i - 1)->kind, RECORD_CALL);
    else assert_int_equal(record->kind, at % 2 == 0 ? RECORD_LAUNCH : RECORD_CALL);
    if (record->kind == RECORD_CALL) assert_int_equal(record->call.sequence, 34 + (at + 1) / 2);
  }
  assert_int_equal(others, 2 * 1365 + 1); /* and the launch of call 34, whose call is lost */
  assert_in_range(places, 1, 64);
  os_free(bytes);
  record_file_free(&digest);
  record_file_free(&file);
}

/* ---- a survey's bytes ---- */

static size_t entry_put(uint8_t *out, uint32_t kind, const void *body, uint32_t bytes) {
  const struct survey_entry entry = {kind, bytes};
  memcpy(out, &entry, sizeof entry);
  memcpy(out + sizeof entry, body, bytes);
  return sizeof entry + bytes;
}

static void test_survey_is_read(void **state) {
  static uint8_t bytes[1 << 18] __attribute__((aligned(8)));
  struct survey_silent silent = {.comm_id = 7, .rank = 3, .why = SURVEY_GONE, .process = 9, .host = "a\033b"};
  struct record_file file;
  struct survey survey;
  uint32_t refused;
  (void)state;
  whole_make(3, 2, &file);
  size_t used = entry_put(bytes, SURVEY_IMAGE, &whole, (uint32_t)file.byte_count);
  used += entry_put(bytes + used, SURVEY_SILENT, &silent, sizeof silent);
  used += entry_put(bytes + used, 77, "unknown", 8);
  used += entry_put(bytes + used, SURVEY_IMAGE, "no file", 8);
  silent.why = SURVEY_WHY_COUNT;
  used += entry_put(bytes + used, SURVEY_SILENT, &silent, sizeof silent);
  assert_true(survey_read(bytes, used, &survey, &refused));
  assert_int_equal(survey.file_count, 1);
  assert_int_equal(survey.files[0].views[0].comm->calls, 3);
  assert_int_equal(survey.silent_count, 1);
  assert_int_equal(survey.silents[0].rank, 3);
  assert_string_equal(survey.silents[0].host, "a?b");
  assert_int_equal(refused, 2);
  survey_free(&survey);
  for (size_t cut = 0; cut < used; cut += cut < 64 || cut + 512 > used ? 1 : 997) {
    assert_true(survey_read(bytes, cut, &survey, &refused));
    assert_true(survey.file_count <= 1);
    survey_free(&survey);
  }
  record_file_free(&file);
}

/* The k-th allocation fails, for any k: nothing leaks. */
static void test_survey_without_memory(void **state) {
  static uint8_t bytes[1 << 18] __attribute__((aligned(8)));
  struct record_file file;
  struct survey survey;
  uint32_t refused;
  bool good = false;
  (void)state;
  whole_make(3, 2, &file);
  const size_t used = entry_put(bytes, SURVEY_IMAGE, &whole, (uint32_t)file.byte_count);
  record_file_free(&file);
  const uint64_t live = os_alloc_live();
  for (uint64_t k = 1; !good; k++) {
    os_alloc_fail_at(k);
    const bool read = survey_read(bytes, used, &survey, &refused);
    os_alloc_fail_at(0);
    good = read && survey.file_count == 1;
    if (read) survey_free(&survey);
    assert_int_equal(os_alloc_live(), live);
    assert_true(k < 10);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_images_give_the_same_diagnosis),
                                     cmocka_unit_test(test_image_is_small),
                                     cmocka_unit_test(test_image_tells_of_gaps),
                                     cmocka_unit_test(test_digest_keeps_order),
                                     cmocka_unit_test(test_survey_is_read),
                                     cmocka_unit_test(test_survey_without_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
