/* archive.c: zstd, one frame after another, into memory that grows with the output. */
#include "files/archive.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <zstd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "input.h"

enum { LEVEL = 6, FIRST_BYTES = 1 << 16 };

static bool is_packed(const char *bytes, size_t byte_count) {
  static const unsigned char magic[4] = {0x28, 0xb5, 0x2f, 0xfd}; /* RFC 8878, 3.1.1 */
  return byte_count >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0;
}

/* Grows the buffer, with space for a zero at its end. */
static ncclResult_t grow(const char *path, struct archive *archive, size_t *capacity) {
  if (archive->byte_count + 1 < *capacity) return ncclSuccess;
  if (*capacity > ARCHIVE_BYTES_MOST)
    return log_fail(ncclInvalidArgument, "%s: unpacks to more than %u MiB; no trace is so large", path,
                    ARCHIVE_BYTES_MOST >> 20);
  size_t wanted = *capacity > 0 ? 2 * *capacity : FIRST_BYTES;
  if (wanted > ARCHIVE_BYTES_MOST) wanted = (size_t)ARCHIVE_BYTES_MOST + 2;
  if (!array_resize(&archive->bytes, wanted, 1)) return log_no_memory("%s: %zu bytes", path, wanted);
  *capacity = wanted;
  return ncclSuccess;
}

/* Output before an error is kept. */
static ncclResult_t unpack(const char *path, ZSTD_DCtx *stream, ZSTD_inBuffer *in, struct archive *archive) {
  size_t capacity = 0, hint = 0;
  bool full = false;
  while (in->pos < in->size || full) {
    TRY(grow(path, archive, &capacity));
    ZSTD_outBuffer out = {archive->bytes, capacity - 1, archive->byte_count};
    hint = ZSTD_decompressStream(stream, &out, in);
    archive->byte_count = out.pos;
    full = out.pos == out.size;
    if (!ZSTD_isError(hint)) continue;
    snprintf(archive->damage, sizeof archive->damage, "zstd at byte %zu of %zu: %s", in->pos, in->size,
             ZSTD_getErrorName(hint));
    return ncclSuccess;
  }
  if (hint != 0)
    snprintf(archive->damage, sizeof archive->damage, "zstd at byte %zu: more was expected: it is cut off",
             in->size);
  return ncclSuccess;
}

static ncclResult_t unpack_all(const char *path, const char *bytes, size_t byte_count,
                               struct archive *archive) {
  ZSTD_DCtx *stream = ZSTD_createDCtx();
  ZSTD_inBuffer in = {bytes, byte_count, 0};
  if (stream == NULL) return log_no_memory("%s: unpacking it", path);
  ncclResult_t result = unpack(path, stream, &in, archive);
  ZSTD_freeDCtx(stream);
  if (result == ncclSuccess && archive->byte_count == 0)
    result = log_fail(ncclInvalidArgument, "%s: nothing of it can be unpacked: %s", path,
                      archive->damage[0] != '\0' ? archive->damage : "it is empty");
  if (result == ncclSuccess) archive->bytes[archive->byte_count] = '\0';
  else os_free(archive->bytes);
  return result;
}

ncclResult_t archive_read(const char *path, struct archive *archive) {
  struct archive fresh = {NULL, 0, ""};
  size_t byte_count = 0;
  char *bytes = input_read(path, ARCHIVE_BYTES_MOST, &byte_count);
  if (bytes == NULL && errno == EFBIG)
    return log_fail(ncclInvalidArgument, "%s: is larger than %u MiB; no trace is", path,
                    ARCHIVE_BYTES_MOST >> 20);
  if (bytes == NULL) return log_fail(ncclInvalidArgument, "%s: cannot be read: %s", path, strerror(errno));
  if (!is_packed(bytes, byte_count)) {
    fresh.bytes = bytes;
    fresh.byte_count = byte_count;
    *archive = fresh;
    return ncclSuccess;
  }
  const ncclResult_t result = unpack_all(path, bytes, byte_count, &fresh);
  os_free(bytes);
  if (result == ncclSuccess) *archive = fresh;
  return result;
}

ncclResult_t archive_write(const char *path, const void *bytes, size_t byte_count) {
  const size_t capacity = ZSTD_compressBound(byte_count);
  char *packed = (char *)os_alloc(capacity);
  ZSTD_CCtx *stream = ZSTD_createCCtx();
  ncclResult_t result = ncclSystemError;
  size_t packed_bytes = 0;
  if (packed != NULL && stream != NULL) {
    ZSTD_CCtx_setParameter(stream, ZSTD_c_compressionLevel, LEVEL);
    ZSTD_CCtx_setParameter(stream, ZSTD_c_checksumFlag, 1);
    packed_bytes = ZSTD_compress2(stream, packed, capacity, bytes, byte_count);
  }
  if (packed == NULL || stream == NULL || ZSTD_isError(packed_bytes))
    log_no_memory("%s: packing %zu bytes", path, byte_count);
  else if (!os_file_write(path, packed, packed_bytes))
    log_warn("%s: cannot be written: %s", path, strerror(errno));
  else result = ncclSuccess;
  ZSTD_freeCCtx(stream);
  os_free(packed);
  return result;
}
