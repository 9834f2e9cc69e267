/* sock_interfaces.c: selects the host's network interfaces and their order. Promises: a user's list is
 * followed or refused, never extended; without a list the choice is equal on hosts with equal interface
 * names. Does not know what the addresses are used for. */
#include "base/sock.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>

#include "base/launch.h"
#include "base/log.h"
#include "base/param.h"
#include "base/sock_inner.h"
#include "base/text.h"

#define SEEN_MOST 256 /* further interfaces are ignored */

/* One interface that is up: its first address, and that address's netmask. */
struct seen {
  struct sock_interface interface;
  uint8_t mask[16];
};

struct survey {
  struct seen seen[SEEN_MOST];
  uint32_t count;
};

ncclResult_t sock_family_wanted(int *family) {
  const char *text = param_text(PARAM_SOCKET_FAMILY);
  if (text[0] == '\0') *family = AF_UNSPEC;
  else if (strcasecmp(text, "AF_INET") == 0) *family = AF_INET;
  else if (strcasecmp(text, "AF_INET6") == 0) *family = AF_INET6;
  else
    return log_fail(ncclInvalidUsage, "NCCL_SOCKET_FAMILY=%s is no family: AF_INET or AF_INET6, or unset it",
                    text);
  return ncclSuccess;
}

static bool name_begins(const char *name, const char *prefix) {
  return strncmp(name, prefix, strlen(prefix)) == 0;
}

static uint32_t address_bytes(const struct sock_address *address) { return address->family == 4 ? 4 : 16; }

static bool is_link_local(const struct sock_address *address) {
  return address->family == 6 && address->bytes[0] == 0xfe && (address->bytes[1] & 0xc0) == 0x80;
}

/* Takes an interface's first address: the kernel lists IPv4 first, and link-local addresses last. */
static void survey_add(struct survey *survey, const struct ifaddrs *entry) {
  struct seen seen;
  memset(&seen, 0, sizeof seen);
  sock_address_of(entry->ifa_addr, &seen.interface.address);
  seen.interface.address.port = 0;
  strncpy(seen.interface.name, entry->ifa_name, sizeof seen.interface.name - 1);
  struct sock_address mask;
  memset(&mask, 0, sizeof mask);
  if (entry->ifa_netmask) sock_address_of(entry->ifa_netmask, &mask);
  /* A netmask's family is not always filled in; an address without netmask is alone in its subnet. */
  if (mask.family == seen.interface.address.family) memcpy(seen.mask, mask.bytes, sizeof seen.mask);
  else memset(seen.mask, 0xff, sizeof seen.mask);
  for (uint32_t i = 0; i < survey->count; i++) {
    if (strcmp(survey->seen[i].interface.name, seen.interface.name) == 0) return;
  }
  if (survey->count < SEEN_MOST) survey->seen[survey->count++] = seen;
}

static ncclResult_t survey_make(int family, struct survey *survey) {
  struct ifaddrs *list = NULL;
  survey->count = 0;
  if (getifaddrs(&list) != 0)
    return log_fail(ncclSystemError, "cannot list this host's network interfaces: %s%s", strerror(errno),
                    sock_cure(errno));
  for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
    const unsigned needed = IFF_UP | IFF_RUNNING;
    if (entry->ifa_addr == NULL || (entry->ifa_flags & needed) != needed) continue;
    const int has = entry->ifa_addr->sa_family;
    if ((has != AF_INET && has != AF_INET6) || (family != AF_UNSPEC && has != family)) continue;
    survey_add(survey, entry);
  }
  freeifaddrs(list);
  return ncclSuccess;
}

/* ---- a user's list ---- */

/* True if `name` matches one of the comma-separated words, as a prefix or exactly. Ignores blanks around
 * words; *first is the index of the first word that matches. */
static bool list_has(const char *list, bool exact, const char *name, uint32_t *first) {
  uint32_t place = 0;
  for (const char *word = list; *word; place++) {
    word += strspn(word, " ");
    size_t length = strcspn(word, ",");
    const char *next = word + length + (word[length] == ',');
    while (length > 0 && word[length - 1] == ' ') length--;
    if (length > 0 && strncmp(name, word, length) == 0 && (!exact || name[length] == '\0')) {
      *first = place;
      return true;
    }
    word = next;
  }
  return false;
}

static uint32_t words_of(const char *list) {
  uint32_t count = 1;
  for (; *list; list++) count += *list == ',';
  return count;
}

struct choice {
  struct sock_interface *found;
  uint32_t count;
};

static void choice_add(struct choice *choice, const struct seen *seen) {
  if (choice->count < SOCK_INTERFACES_MAX) choice->found[choice->count++] = seen->interface;
}

/* In the order of the user's words; a word that matches several keeps the system's order. */
static void choose_listed(const struct survey *survey, const char *list, bool exact, struct choice *choice) {
  const uint32_t words = words_of(list);
  for (uint32_t word = 0; word < words; word++) {
    for (uint32_t i = 0; i < survey->count; i++) {
      uint32_t first = 0;
      if (list_has(list, exact, survey->seen[i].interface.name, &first) && first == word)
        choice_add(choice, &survey->seen[i]);
    }
  }
}

/* ---- the rules, each tried if those before it found nothing ---- */

struct rule_context {
  const struct sock_address *near; /* or NULL */
  const char *excluded;            /* words of ^, or NULL */
  bool exact;
  bool local; /* all ranks are on this host */
};

typedef bool interface_rule(const struct seen *seen, const struct rule_context *context);

static bool rule_infiniband(const struct seen *seen, const struct rule_context *context) {
  /* A list that only excludes interfaces selects all others. */
  return context->excluded == NULL && name_begins(seen->interface.name, "ib");
}

static bool rule_near(const struct seen *seen, const struct rule_context *context) {
  const struct sock_address *own = &seen->interface.address, *near = context->near;
  if (context->excluded || near == NULL || near->family != own->family) return false;
  if (is_link_local(near) && near->scope != own->scope) return false;
  for (uint32_t i = 0; i < address_bytes(own); i++)
    if ((own->bytes[i] ^ near->bytes[i]) & seen->mask[i]) return false;
  return true;
}

static bool rule_docker(const struct seen *seen, const struct rule_context *context) {
  (void)context;
  return name_begins(seen->interface.name, "docker");
}

static bool rule_loopback(const struct seen *seen, const struct rule_context *context) {
  (void)context;
  return strcmp(seen->interface.name, "lo") == 0;
}

static bool rule_virtual(const struct seen *seen, const struct rule_context *context) {
  (void)context;
  return name_begins(seen->interface.name, "virbr");
}

static bool rule_ordinary(const struct seen *seen, const struct rule_context *context) {
  return !rule_docker(seen, context) && !rule_loopback(seen, context) && !rule_virtual(seen, context);
}

static bool rule_local(const struct seen *seen, const struct rule_context *context) {
  return context->local && rule_loopback(seen, context);
}

static void choose_by_rules(const struct survey *survey, const struct rule_context *context,
                            struct choice *choice) {
  static interface_rule *const rules[] = {rule_local,  rule_infiniband, rule_near,   rule_ordinary,
                                          rule_docker, rule_loopback,   rule_virtual};
  for (size_t rule = 0; rule < sizeof rules / sizeof *rules && choice->count == 0; rule++) {
    for (uint32_t i = 0; i < survey->count; i++) {
      const struct seen *seen = &survey->seen[i];
      uint32_t first;
      if (context->excluded && list_has(context->excluded, context->exact, seen->interface.name, &first))
        continue;
      if (rules[rule](seen, context)) choice_add(choice, seen);
    }
  }
}

static ncclResult_t nothing_found(const struct survey *survey, const char *wanted) {
  struct text there = {NULL, 0, 0, false};
  for (uint32_t i = 0; i < survey->count; i++)
    text_add(&there, "%s%s", i > 0 ? ", " : "", survey->seen[i].interface.name);
  const char *names = there.begin ? there.begin : "none";
  const char *family = param_text(PARAM_SOCKET_FAMILY);
  const char *of = family[0] ? " with NCCL_SOCKET_FAMILY=" : "";
  ncclResult_t result;
  if (wanted[0])
    result = log_fail(ncclInvalidUsage,
                      "NCCL_SOCKET_IFNAME=%s matches no interface that is up%s%s; there are: %s. Name one of "
                      "these, or unset it",
                      wanted, of, family, names);
  else
    result = log_fail(ncclSystemError,
                      "this host has no network interface that is up and has an address%s%s; `ip addr` shows "
                      "them; `ip link set lo up` is enough for one host",
                      of, family);
  text_free(&there);
  return result;
}

ncclResult_t sock_interfaces_find(const struct sock_address *near, struct sock_interface *found,
                                  uint32_t *count) {
  const char *wanted = param_text(PARAM_SOCKET_IFNAME), *list = wanted;
  struct sock_interface chosen[SOCK_INTERFACES_MAX];
  struct choice choice = {chosen, 0};
  struct survey survey;
  int family;
  TRY(sock_family_wanted(&family));
  TRY(survey_make(family, &survey));
  const bool inverted = list[0] == '^';
  list += inverted;
  const bool exact = list[0] == '=';
  list += exact;
  if (wanted[0] && !inverted) {
    choose_listed(&survey, list, exact, &choice);
  } else {
    const struct rule_context context = {near, inverted ? list : NULL, exact,
                                         !wanted[0] && launch_is_local()};
    choose_by_rules(&survey, &context, &choice);
  }
  if (choice.count == 0) return nothing_found(&survey, wanted);
  memcpy(found, chosen, choice.count * sizeof *found);
  *count = choice.count;
  return ncclSuccess;
}

uint32_t sock_scope_here(const struct sock_address *address) {
  struct sock_interface found[SOCK_INTERFACES_MAX];
  uint32_t count = 0;
  if (!is_link_local(address) || sock_interfaces_find(NULL, found, &count) != ncclSuccess)
    return address->scope;
  for (uint32_t i = 0; i < count; i++)
    if (if_nametoindex(found[i].name) == address->scope) return address->scope;
  const uint32_t first = if_nametoindex(found[0].name);
  return first != 0 ? first : address->scope;
}
