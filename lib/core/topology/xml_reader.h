/* xml_reader.h: what the readers of NCCL's XML files share: one parse of a whole text, without document
 * types, whose first fault is a sentence with file and line. */
#ifndef TUTTI_CORE_XML_READER_H
#define TUTTI_CORE_XML_READER_H

#include <expat.h>

#include "nccl.h"

/* The first member of a reader, which is what the handlers get as their data. */
struct xml_reader {
  XML_Parser parser;
  const char *prefix, *path; /* before a fault's line: "NCCL_GRAPH_FILE: " or "", and the file */
  const char *expected;      /* what the text should be, for a fault of its syntax */
  char fault[512];           /* what is wrong, "" if nothing */
};

/* Keeps the first fault, and ends the parse. */
__attribute__((format(printf, 2, 3))) void xml_fail(struct xml_reader *reader, const char *format, ...);
/* ncclInvalidUsage: a fault, which is logged; ncclSystemError: out of memory. */
ncclResult_t xml_read(struct xml_reader *reader, XML_StartElementHandler begin, XML_EndElementHandler end,
                      const char *text, size_t bytes);

#endif
