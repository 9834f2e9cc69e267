/* explainer.c: keeps the function of core that diagnoses. */
#include "backends/explainer.h"

static explainer current; /* atomic */

void explainer_set(explainer explain) { __atomic_store_n(&current, explain, __ATOMIC_RELEASE); }

void explainer_ask(char *out, size_t out_bytes) {
  const explainer explain = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
  out[0] = '\0';
  if (explain != NULL) explain(out, out_bytes);
}
