/* image.h: makes a file of records (trace/record.h) from the data of other tools, so that it can be
 * diagnosed, printed and compared like this library's own. It has calls, and their later states as far as
 * they are known. */
#ifndef TUTTI_SIM_IMAGE_H
#define TUTTI_SIM_IMAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "trace/record.h"

struct image_comm {
  struct record_comm comm; /* the caller fills ids, names, rank, counts and the meaning of `counts` */
  union record *records;
  uint32_t record_count, record_capacity;
  uint32_t operations, collectives; /* added so far */
};

struct image {
  struct record_header header; /* the caller fills host, process, rank, times and library */
  struct image_comm *comms;
  uint32_t comm_count, comm_capacity;
};

/* Adds a communicator and returns its number; UINT32_MAX when memory is out. */
uint32_t image_comm_add(struct image *image);
/* Adds an operation that was called and launched; its sequence and collective numbers continue the
 * communicator's. False when memory is out. */
bool image_call_add(struct image_comm *comm, const struct record_call *call,
                    const struct record_place *place);
/* The bytes of the file, os_alloc'ed; NULL when memory is out. */
void *image_make(const struct image *image, size_t *byte_count);
void image_free(struct image *image);

#endif
