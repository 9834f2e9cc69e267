/* image.h: makes a file of records (trace/record.h) out of what other tools have written, so that it is
 * judged, printed and compared as our own are. Knows calls, and as much of their course as it is told. */
#ifndef TUTTI_SIM_IMAGE_H
#define TUTTI_SIM_IMAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "trace/record.h"

struct image_comm {
  struct record_comm comm; /* the maker fills ids, names, rank, counts and what `counts` stands for */
  union record *records;
  uint32_t record_count, record_capacity;
  uint32_t operations, collectives; /* that were added */
};

struct image {
  struct record_header header; /* the maker fills host, process, rank, times and library */
  struct image_comm *comms;
  uint32_t comm_count, comm_capacity;
};

/* A communicator more: its number; UINT32_MAX when memory is out. */
uint32_t image_comm_add(struct image *image);
/* An operation that was called and launched; its sequence and collective numbers count on from what the
 * communicator has. False when memory is out. */
bool image_call_add(struct image_comm *comm, const struct record_call *call,
                    const struct record_place *place);
/* The bytes of the file, os_alloc'ed; NULL when memory is out. */
void *image_make(const struct image *image, size_t *byte_count);
void image_free(struct image *image);

#endif
