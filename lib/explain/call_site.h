/* call_site.h: where the program made the calls that a diagnosis names. */
#ifndef TUTTI_EXPLAIN_CALL_SITE_H
#define TUTTI_EXPLAIN_CALL_SITE_H

#include "explain/diagnose.h"
#include "explain/rank_state.h"

/* The diagnosis names this call of the rank; NULL: none. The first DIAGNOSIS_CITED_MOST different calls
 * count. */
void cite(struct diagnosis *diagnosis, const struct rank_state *state, const struct record_call *call);

/* Appends to the sentence where the cited calls were made, as far as their files tell. */
void sites_append(struct diagnosis *diagnosis);

#endif
