/* sock_inner.h: what sock.c and sock_interfaces.c share: conversion of addresses, and cures for errors. */
#ifndef TUTTI_BASE_SOCK_INNER_H
#define TUTTI_BASE_SOCK_INNER_H

#include <errno.h>
#include <sys/socket.h>

#include "base/sock.h"

/* Family 0 for a family that is neither IPv4 nor IPv6. */
void sock_address_of(const struct sockaddr *from, struct sock_address *address);
/* NCCL_SOCKET_FAMILY as AF_INET, AF_INET6 or AF_UNSPEC. */
ncclResult_t sock_family_wanted(int *family);
/* The scope for a link-local address on this host: its own if that is one of the selected interfaces, else
 * the first selected interface's; interface numbers of other hosts have no meaning here. */
uint32_t sock_scope_here(const struct sock_address *address);
/* "; " and what to do about errno `cause`, or "". */
const char *sock_cure(int cause);

#endif
