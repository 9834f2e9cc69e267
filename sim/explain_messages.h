/* explain_messages.h: a rank's plan of messages (sends, receives, copies), summed up by peer and direction:
 * for `explain plan` and `check --print`. */
#ifndef TUTTI_SIM_EXPLAIN_MESSAGES_H
#define TUTTI_SIM_EXPLAIN_MESSAGES_H

#include "core/plan/plan.h"
#include "json.h"

/* True if the plan has messages alone. */
bool messages_only(const struct plan *plan);
/* Each prints the predicted time, and then for each peer the round in which both ends meet, the protocol, the
 * parts, their chunks and channels. */
void messages_print(const struct plan_request *request, const struct plan *plan);
/* The lines by peer alone. */
void messages_list(const struct plan *plan);
void messages_json(struct json *json, const struct plan_request *request, const struct plan *plan);

#endif
