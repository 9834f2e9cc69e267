/* service.c: host tasks as actors of the guarded scheduler: proxies, emulated networks. A service gets a turn
 * after every change that may concern it; if its turn changes something, all services get another one. If
 * none of them changes anything, a deadlock can be detected. */
#include <stdio.h>
#include <string.h>

#include "backends/emu/block.h"
#include "base/log.h"
#include "base/os.h"
#include "trace/trace.h"

#define SERVICE_KEY_KIND UINT64_C(4) /* a kind of actors' keys; lanes have 2, stores 3 */
#define SERVICE_TRACE_ACTION 0x81u

struct emu_service {
  struct emu_actor actor;
  struct device_service service;
  bool poked; /* its turn may change something */
  struct emu_service *next;
};

static struct emu_service *services; /* locked */

static void service_poke(struct emu_service *service) {
  service->poked = true;
  emu_actor_wake(&service->actor);
}

void emu_services_poke(void) {
  for (struct emu_service *service = services; service != NULL; service = service->next)
    service_poke(service);
}

static bool service_enabled(struct emu_actor *actor) {
  const struct emu_service *service = (const struct emu_service *)actor;
  return service->poked && service->service.ready(service->service.argument);
}

static bool is_outside(const struct emu_service *service) {
  return service->service.outside != NULL && service->service.outside(service->service.argument);
}

static void service_actor_run(struct emu_actor *actor) {
  struct emu_service *service = (struct emu_service *)actor;
  const struct device_service *of = &service->service;
  const bool outside = is_outside(service);
  service->poked = false;
  of->turn(of->argument);
  if (of->moved != NULL && !of->moved(of->argument)) return;
  if (outside) emu_world_outside_moved();
  emu_trace_hash(actor->key, SERVICE_TRACE_ACTION, 0);
  emu_services_poke();
  emu_changed();
}

static const struct emu_actor_ops service_ops = {service_enabled, service_actor_run};

/* Drawn only from the seed and the key: a service may exist before the world starts, and must not change the
 * world's own random numbers. */
static void service_draw_priority(struct emu_service *service) {
  uint64_t z = (emu_options()->seed ^ service->actor.key) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  service->actor.priority = emu_options()->rule == EMU_RULE_PRIORITY ? z ^ (z >> 27) : 0;
}

void emu_services_restart(void) {
  for (struct emu_service *service = services; service != NULL; service = service->next)
    service_draw_priority(service);
}

ncclResult_t emu_service_add(const struct device_service *service, void **handle) {
  if (emu_options()->mode != EMU_GUARDED) {
    *handle = NULL;
    return ncclSuccess;
  }
  struct emu_service *fresh = (struct emu_service *)os_alloc(sizeof *fresh);
  if (fresh == NULL) return log_no_memory("the service '%s'", service->name);
  fresh->service = *service;
  emu_lock();
  fresh->actor.ops = &service_ops;
  fresh->actor.key = SERVICE_KEY_KIND << 56 | (service->key & ~(UINT64_C(0xff) << 56));
  service_draw_priority(fresh);
  struct emu_service **place = &services;
  while (*place != NULL && (*place)->actor.key < fresh->actor.key) place = &(*place)->next;
  fresh->next = *place;
  *place = fresh;
  service_poke(fresh);
  emu_unlock();
  *handle = fresh;
  return ncclSuccess;
}

/* A service that still exists after a switch to threads mode gets no turns, so the lock is not taken for it.
 */
void emu_service_wake(void *handle) {
  if (handle == NULL || emu_options()->mode != EMU_GUARDED) return;
  emu_lock();
  service_poke((struct emu_service *)handle);
  emu_unlock();
}

void emu_service_remove(void *handle) {
  struct emu_service *service = (struct emu_service *)handle;
  if (service == NULL) return;
  emu_lock();
  struct emu_service **place = &services;
  while (*place != service) place = &(*place)->next;
  *place = service->next;
  emu_actor_remove(&service->actor);
  emu_unlock();
  os_free(service);
}

bool emu_services_are_outside(void) {
  for (const struct emu_service *service = services; service != NULL; service = service->next)
    if (is_outside(service)) return true;
  return false;
}

bool emu_services_look_outside(void) {
  bool any = false;
  for (struct emu_service *service = services; service != NULL; service = service->next) {
    if (!is_outside(service)) continue;
    service_poke(service);
    any = true;
  }
  return any;
}

void emu_services_report(char *out, size_t out_bytes) {
  size_t used = 0;
  out[0] = '\0';
  for (const struct emu_service *service = services; service != NULL; service = service->next) {
    if (service->service.report == NULL || used + 1 >= out_bytes) continue;
    service->service.report(service->service.argument, out + used, out_bytes - used);
    used += strlen(out + used);
  }
}
