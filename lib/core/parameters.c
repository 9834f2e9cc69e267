/* parameters.c: ncclParam*: a program reads the settings that the library uses. A handle is the setting's
 * row. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/api.h"

#define NUMBER_BYTES 24

static ncclResult_t null_fail(const char *call) {
  return log_fail(ncclInvalidArgument, "%s: an argument is NULL; pass a setting and where to put its value",
                  call);
}

static ncclResult_t key_find(const char *call, const char *key, enum param_id *id) {
  if (!key) return null_fail(call);
  *id = param_find(key);
  if (*id < PARAM_COUNT) return ncclSuccess;
  const struct param_accepted *row = param_accepted_find(key);
  if (row != NULL)
    return log_fail(ncclInvalidArgument, "%s: %s has no effect in tutti, so it has no value: %s", call, key,
                    row->why);
  return log_fail(ncclInvalidArgument, "%s: %s is no setting; `tutti help params` lists all", call, key);
}

static ncclResult_t handle_find(const char *call, const struct ncclParamHandle *handle, const void *out,
                                enum param_id *id) {
  if (!handle || !out) return null_fail(call);
  for (int i = 0; i < PARAM_COUNT; i++) {
    *id = (enum param_id)i;
    if ((const void *)param_row(*id) == (const void *)handle) return ncclSuccess;
  }
  return log_fail(ncclInvalidArgument, "%s: %p is no handle; pass one that ncclParamBind has set", call,
                  (const void *)handle);
}

ncclResult_t pncclParamBind(ncclParamHandle_t *out, const char *key) {
  enum param_id id;
  if (!out) return null_fail("ncclParamBind");
  TRY(key_find("ncclParamBind", key, &id));
  *out = (ncclParamHandle_t)(uintptr_t)param_row(id);
  return ncclSuccess;
}
API_EXPORT(ParamBind);

/* ---- numbers ---- */

static ncclResult_t number_get(const char *call, const struct ncclParamHandle *handle, const void *out,
                               int64_t lowest, int64_t highest, int64_t *value) {
  enum param_id id;
  TRY(handle_find(call, handle, out, &id));
  if (param_row(id)->kind == PARAM_TEXT)
    return log_fail(ncclInvalidArgument, "%s: %s is a text; use ncclParamGetStr", call, param_name(id));
  *value = param_int(id);
  if (*value >= lowest && *value <= highest) return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "%s: %s is %" PRId64 ", outside %" PRId64 "..%" PRId64 "; use ncclParamGetI64", call,
                  param_name(id), *value, lowest, highest);
}

#define GET(suffix, type, lowest, highest)                                                          \
  ncclResult_t pncclParamGet##suffix(ncclParamHandle_t h, type *out) {                              \
    int64_t value = 0;                                                                              \
    TRY(number_get("ncclParamGet" #suffix, h, out, (int64_t)(lowest), (int64_t)(highest), &value)); \
    *out = (type)value;                                                                             \
    return ncclSuccess;                                                                             \
  }                                                                                                 \
  API_EXPORT(ParamGet##suffix)

GET(I8, int8_t, INT8_MIN, INT8_MAX);
GET(I16, int16_t, INT16_MIN, INT16_MAX);
GET(I32, int32_t, INT32_MIN, INT32_MAX);
GET(I64, int64_t, INT64_MIN, INT64_MAX);
GET(U8, uint8_t, 0, UINT8_MAX);
GET(U16, uint16_t, 0, UINT16_MAX);
GET(U32, uint32_t, 0, UINT32_MAX);
GET(U64, uint64_t, 0, INT64_MAX);

/* ---- text ---- */

/* The text of a number stays where it is: it is written again only if the setting has another value. */
static const char *value_text(enum param_id id) {
  static char texts[PARAM_COUNT][NUMBER_BYTES]; /* locked */
  static os_mutex mutex = OS_MUTEX_INITIALIZER;
  char number[NUMBER_BYTES];
  if (param_row(id)->kind == PARAM_TEXT) return param_text(id);
  snprintf(number, sizeof number, "%" PRId64, param_int(id));
  os_mutex_lock(&mutex);
  if (strcmp(texts[id], number) != 0) memcpy(texts[id], number, sizeof number);
  os_mutex_unlock(&mutex);
  return texts[id];
}

ncclResult_t pncclParamGetStr(ncclParamHandle_t h, const char **out) {
  enum param_id id;
  TRY(handle_find("ncclParamGetStr", h, out, &id));
  *out = value_text(id);
  return ncclSuccess;
}
API_EXPORT(ParamGetStr);

ncclResult_t pncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len) {
  enum param_id id;
  TRY(handle_find("ncclParamGet", h, out, &id));
  if (!len) return null_fail("ncclParamGet");
  const bool text = param_row(id)->kind == PARAM_TEXT;
  const int64_t number = text ? 0 : param_int(id);
  const void *bytes = text ? (const void *)param_text(id) : &number;
  *len = text ? (int)strlen(param_text(id)) : (int)sizeof number;
  if (*len > maxLen)
    return log_fail(ncclInvalidArgument, "ncclParamGet: the value of %s has %d bytes and the buffer %d",
                    param_name(id), *len, maxLen);
  memcpy(out, bytes, (size_t)*len);
  return ncclSuccess;
}
API_EXPORT(ParamGet);

ncclResult_t pncclParamGetParameter(const char *key, const char **value, int *valueLen) {
  enum param_id id;
  TRY(key_find("ncclParamGetParameter", key, &id));
  if (!value) return null_fail("ncclParamGetParameter");
  *value = value_text(id);
  if (valueLen) *valueLen = (int)strlen(*value);
  return ncclSuccess;
}
API_EXPORT(ParamGetParameter);

/* ---- all ---- */

/* NCCL's names, then those that only tutti has. */
static const char *keys[PARAM_COUNT];
static int nccl_key_count;

static void keys_fill(void) {
  int count = 0;
  for (int ours = 0; ours < 2; ours++) {
    for (int i = 0; i < PARAM_COUNT; i++) {
      const char *name = param_name((enum param_id)i);
      if ((strncmp(name, "TUTTI_", 6) == 0) == (ours != 0)) keys[count++] = name;
    }
    if (!ours) nccl_key_count = count;
  }
}

static int keys_count(void) {
  static os_mutex mutex = OS_MUTEX_INITIALIZER;
  os_mutex_lock(&mutex);
  if (nccl_key_count == 0) keys_fill();
  os_mutex_unlock(&mutex);
  const char *all = param_text(PARAM_PARAM_DUMP_ALL);
  return strcmp(all, "true") == 0 || strcmp(all, "1") == 0 ? PARAM_COUNT : nccl_key_count;
}

ncclResult_t pncclParamGetAllParameterKeys(const char ***table, int *tableLen) {
  if (!table || !tableLen) return null_fail("ncclParamGetAllParameterKeys");
  *tableLen = keys_count();
  *table = keys;
  return ncclSuccess;
}
API_EXPORT(ParamGetAllParameterKeys);

void pncclParamDumpAll(void) {
  const int count = keys_count();
  for (int i = 0; i < count; i++) {
    const enum param_id id = param_find(keys[i]);
    log_info(LOG_ENV, "%s=%s (%s)", keys[i], param_is_hidden(id) ? "..." : value_text(id), param_source(id));
  }
}
API_EXPORT(ParamDumpAll);
