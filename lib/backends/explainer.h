/* explainer.h: the diagnosis of this process's records, for the reports of backends. Core makes it, and
 * backends cannot call core. */
#ifndef TUTTI_BACKENDS_EXPLAINER_H
#define TUTTI_BACKENDS_EXPLAINER_H

#include <stddef.h>

typedef void (*explainer)(char *out, size_t out_bytes);

void explainer_set(explainer explain);
/* One sentence: which rank hangs the others, and why; "" if the records do not tell. Any thread; the caller
 * may hold the backend's lock. */
void explainer_ask(char *out, size_t out_bytes);

#endif
