/* xml_reader.c: see xml_reader.h. */
#include "core/topology/xml_reader.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"
#include "base/os.h"

void xml_fail(struct xml_reader *reader, const char *format, ...) {
  if (reader->fault[0] != '\0') return;
  const int used = snprintf(reader->fault, sizeof reader->fault, "%s%s:%lu: ", reader->prefix, reader->path,
                            (unsigned long)XML_GetCurrentLineNumber(reader->parser));
  va_list arguments;
  va_start(arguments, format);
  if (used > 0 && (size_t)used < sizeof reader->fault)
    vsnprintf(reader->fault + used, sizeof reader->fault - (size_t)used, format, arguments);
  va_end(arguments);
  XML_StopParser(reader->parser, XML_FALSE);
}

static void XMLCALL doctype_begin(void *data, const char *name, const char *system_id, const char *public_id,
                                  int has_subset) {
  (void)name, (void)system_id, (void)public_id, (void)has_subset;
  xml_fail((struct xml_reader *)data, "a document type; expected none, as it could define entities");
}

ncclResult_t xml_read(struct xml_reader *reader, XML_StartElementHandler begin, XML_EndElementHandler end,
                      const char *text, size_t bytes) {
  static const XML_Memory_Handling_Suite memory = {os_alloc, os_realloc, os_free};
  reader->parser = XML_ParserCreate_MM(NULL, &memory, NULL);
  if (reader->parser == NULL) return log_no_memory("%s: reading it", reader->path);
  XML_SetUserData(reader->parser, reader);
  XML_SetElementHandler(reader->parser, begin, end);
  XML_SetStartDoctypeDeclHandler(reader->parser, doctype_begin);
  const enum XML_Status status = XML_Parse(reader->parser, text, (int)bytes, XML_TRUE);
  const enum XML_Error error = XML_GetErrorCode(reader->parser);
  const bool out_of_memory = status != XML_STATUS_OK && error == XML_ERROR_NO_MEMORY;
  if (status != XML_STATUS_OK && !out_of_memory)
    xml_fail(reader, "%s; expected %s", XML_ErrorString(error), reader->expected);
  XML_ParserFree(reader->parser);
  if (out_of_memory) return log_no_memory("%s: reading it", reader->path);
  return reader->fault[0] == '\0' ? ncclSuccess : log_fail(ncclInvalidUsage, "%s", reader->fault);
}
