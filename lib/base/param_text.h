/* param_text.h: which values the settings of kind TEXT accept. For param.c. */
#ifndef TUTTI_BASE_PARAM_TEXT_H
#define TUTTI_BASE_PARAM_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/param.h"

enum { PARAM_WHAT_BYTES = 320 };

/* False if the text cannot be a value of this setting; then `what` ends the sentence "NAME=value ...". Texts
 * whose grammar other parts of the library know (TUTTI_EMU, NCCL_ALGO, TUTTI_RANK) are checked there. Changes
 * no file. */
bool param_text_check(enum param_id id, const char *text, char *what, size_t what_bytes);

#endif
