/* test_capability.c: which GPUs a library has code for, and the error message for other GPUs. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "backends/cuda/capability.h"

static const uint32_t usual_machine[] = {80, 90, 100, 120, 0}, usual_ptx[] = {80, 90, 100, 0};
static const struct capability_code usual = {usual_machine, usual_ptx};
static const uint32_t one[] = {90, 0};
static const struct capability_code hopper = {one, one};
static const uint32_t nothing[] = {0};
static const struct capability_code ampere = {(const uint32_t[]){86, 0}, nothing};

static void test_machine_code_runs_within_its_major_version(void **state) {
  (void)state;
  const uint32_t native[] = {80, 86, 87, 89, 90, 100, 103, 120, 121};
  for (size_t i = 0; i < sizeof native / sizeof native[0]; i++)
    assert_int_equal(capability_support(&usual, native[i]), CAPABILITY_NATIVE);
  assert_int_equal(capability_support(&ampere, 86), CAPABILITY_NATIVE);
  assert_int_equal(capability_support(&ampere, 89), CAPABILITY_NATIVE);
  assert_int_equal(capability_support(&ampere, 80), CAPABILITY_NONE);
  assert_int_equal(capability_support(&ampere, 90), CAPABILITY_NONE);
}

static void test_ptx_runs_on_what_is_newer(void **state) {
  (void)state;
  assert_int_equal(capability_support(&usual, 110), CAPABILITY_BY_PTX);
  assert_int_equal(capability_support(&usual, 130), CAPABILITY_BY_PTX);
  assert_int_equal(capability_support(&hopper, 100), CAPABILITY_BY_PTX);
  assert_int_equal(capability_support(&hopper, 89), CAPABILITY_NONE);
  assert_int_equal(capability_support(&usual, 75), CAPABILITY_NONE);
}

static void test_the_sentence_names_gpu_code_and_cure(void **state) {
  (void)state;
  char text[512];
  capability_explain(&hopper, 3, "NVIDIA A10", 86, text, sizeof text);
  assert_string_equal(text,
                      "device 3 (NVIDIA A10) has compute capability 8.6, and libtutti-cuda.so has no code "
                      "for it, only machine code for 9.0 and PTX for 9.0: build it with `scons GPUS=86`, "
                      "or for every supported GPU with `scons`");
  capability_explain(&usual, 0, "Tesla V100", 70, text, sizeof text);
  assert_string_equal(text,
                      "device 0 (Tesla V100) has compute capability 7.0, and libtutti-cuda.so has no code "
                      "for it, only machine code for 8.0, 9.0, 10.0, 12.0 and PTX for 8.0, 9.0, 10.0: GPUs "
                      "before 8.0 are not supported; TUTTI_BACKEND=emu runs without a GPU");
}

static void test_a_long_list_is_cut(void **state) {
  (void)state;
  uint32_t many[65];
  char text[512];
  for (uint32_t i = 0; i < 64; i++) many[i] = 100 + i;
  many[64] = 0;
  const struct capability_code code = {many, many};
  capability_explain(&code, 0, "GPU", 80, text, sizeof text);
  assert_true(strlen(text) < sizeof text);
  capability_explain(&code, 0, "GPU", 80, text, 16);
  assert_int_equal(strlen(text), 15);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_machine_code_runs_within_its_major_version),
      cmocka_unit_test(test_ptx_runs_on_what_is_newer),
      cmocka_unit_test(test_the_sentence_names_gpu_code_and_cure),
      cmocka_unit_test(test_a_long_list_is_cut),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
