/* copies_note.h: queues a collective that copy engines carry out. */
#ifndef TUTTI_CORE_COPIES_NOTE_H
#define TUTTI_CORE_COPIES_NOTE_H

#include "core/comm/copies.h"

/* `place`: as copies_find() has found it, with a window. */
ncclResult_t copies_note(const struct collective_call *call, const struct copies_place *place);

#endif
