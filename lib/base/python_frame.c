/* python_frame.c: follows the calling thread's state to its innermost frame. Every object is compared with
 * the type that it must have before it is used, so an interpreter of another layout is noticed. */
#include "base/python_frame.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/os.h"

/* Offsets in CPython's structures, in bytes; offsetof() in its own headers gives them. */
struct layout {
  const char *version;                         /* as Py_GetVersion() begins */
  uint16_t current;                            /* PyThreadState: the frame, or the _PyCFrame that has it */
  int16_t in_cframe;                           /* _PyCFrame: the frame; -1: there is none between */
  uint16_t code, previous, instruction, owner; /* _PyInterpreterFrame */
  uint16_t instructions;                       /* PyCodeObject: where they begin */
  uint16_t text;                               /* PyASCIIObject: its characters */
};
static const struct layout layouts[] = {{"3.11.", 56, 8, 32, 48, 56, 69, 184, 48},
                                        {"3.12.", 56, 0, 0, 8, 56, 70, 192, 40},
                                        {"3.13.", 72, -1, 0, 8, 56, 70, 200, 40}};
enum {
  TYPE = 8,             /* PyObject */
  FILE_NAME = 112,      /* PyCodeObject */
  NAME = 120,           /* PyCodeObject */
  TEXT_STATE = 32,      /* PyASCIIObject: bits */
  TEXT_IS_ASCII = 0x60, /* compact, ascii */
  OWNED_BY_C = 3,       /* a frame without Python code, below those of a call from C */
  FRAMES_MOST = 64,
  CALLERS_MOST = 32768, /* lines of a program; numbers of 16 bits */
  CALLER_HEADS = 1021,
  CALLER_BYTES = 160
};

bool python_frame_known;
static const struct layout *layout;
static struct {
  void *(*thread_state)(void); /* needs no GIL */
  int (*line)(void *code, int offset);
  const void *code_type, *text_type;
} python;

static const void *pointer_at(const void *base, size_t offset) {
  const void *value;
  memcpy(&value, (const char *)base + offset, sizeof value);
  return value;
}

static const struct layout *layout_find(void) {
  const char *(*version)(void);
  void *found = dlsym(RTLD_DEFAULT, "Py_GetVersion");
  memcpy(&version, &found, sizeof version);
  /* Builds for debugging, and those without a GIL, have other layouts. */
  if (found == NULL || dlsym(RTLD_DEFAULT, "_Py_NegativeRefcount") != NULL) return NULL;
  const char *text = version();
  if (strstr(text, "free-threading") != NULL) return NULL;
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
    if (strncmp(text, layouts[i].version, strlen(layouts[i].version)) == 0) return &layouts[i];
  return NULL;
}

void python_frame_look(void) {
  if (__atomic_load_n(&python_frame_known, __ATOMIC_ACQUIRE)) return;
  void *const state = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
  void *const line = dlsym(RTLD_DEFAULT, "PyCode_Addr2Line");
  const struct layout *known = state != NULL && line != NULL ? layout_find() : NULL;
  if (known == NULL) return;
  memcpy(&python.thread_state, &state, sizeof state);
  memcpy(&python.line, &line, sizeof line);
  python.code_type = dlsym(RTLD_DEFAULT, "PyCode_Type");
  python.text_type = dlsym(RTLD_DEFAULT, "PyUnicode_Type");
  layout = known;
  if (python.code_type != NULL && python.text_type != NULL)
    __atomic_store_n(&python_frame_known, true, __ATOMIC_RELEASE);
}

/* So that the first call has a place as well. An interpreter that is loaded later is found later. */
__attribute__((constructor)) static void look_when_loaded(void) { python_frame_look(); }

/* The characters of a str; NULL if they are not ASCII. */
static const char *ascii_of(const void *text) {
  uint32_t state;
  if (text == NULL || pointer_at(text, TYPE) != python.text_type) return NULL;
  memcpy(&state, (const char *)text + TEXT_STATE, sizeof state);
  return (state & TEXT_IS_ASCII) == TEXT_IS_ASCII ? (const char *)text + layout->text : NULL;
}

/* True for the files of PyTorch and of this library's package. */
static bool file_is_wrapper(const char *path) {
  const char *name = os_base_name(path), package[] = "/tutti/";
  if (strstr(path, "/torch/") != NULL) return true;
  const size_t folder = (size_t)(name - path), bytes = sizeof package - 1;
  return folder >= bytes && strncmp(name - bytes, package, bytes) == 0;
}

bool python_frame_read(struct python_frame *out) {
  const void *state = python.thread_state();
  bool found = false;
  if (state == NULL) return false;
  const void *frame = pointer_at(state, layout->current);
  if (frame != NULL && layout->in_cframe >= 0) frame = pointer_at(frame, (size_t)layout->in_cframe);
  for (int i = 0; i < FRAMES_MOST && frame != NULL; i++, frame = pointer_at(frame, layout->previous)) {
    if (((const char *)frame)[layout->owner] == OWNED_BY_C) continue;
    const void *code = pointer_at(frame, layout->code);
    if (code == NULL || pointer_at(code, TYPE) != python.code_type) return found;
    const char *path = ascii_of(pointer_at(code, FILE_NAME));
    const bool wraps = path != NULL && file_is_wrapper(path);
    if (!found || !wraps)
      *out = (struct python_frame){code, pointer_at(frame, layout->instruction), pointer_at(code, NAME)};
    found = true;
    if (!wraps) return true;
  }
  return found;
}

bool python_frame_text(const struct python_frame *frame, char *out, size_t out_bytes) {
  const char *path = ascii_of(pointer_at(frame->code, FILE_NAME)), *name = ascii_of(frame->name);
  const int64_t offset =
      (const char *)frame->instruction - ((const char *)frame->code + layout->instructions);
  if (path == NULL || name == NULL || offset < -2 || offset > INT32_MAX) return false;
  void *code;
  memcpy(&code, &frame->code, sizeof code);
  snprintf(out, out_bytes, "%s:%d (%s)", os_base_name(path), python.line(code, (int)offset), name);
  return true;
}

/* ---- places of calls ---- */

struct caller {
  struct python_frame frame;
  uint32_t next; /* with the same hash: number plus one, 0: none */
  char text[CALLER_BYTES];
};
/* CALLERS_MOST of them, mapped before the first is written: a program in little address space needs none. */
static struct caller *callers;
static uint32_t caller_heads[CALLER_HEADS]; /* read atomically; callers are added under the lock, and stay */
static uint32_t caller_count;
static os_mutex callers_lock = OS_MUTEX_INITIALIZER;

static bool frames_are_same(const struct python_frame *a, const struct python_frame *b) {
  return a->instruction == b->instruction && a->code == b->code && a->name == b->name;
}

static uint32_t *caller_head(const struct python_frame *frame) {
  return &caller_heads[((uintptr_t)frame->instruction >> 1) % CALLER_HEADS];
}

static const struct caller *caller_find(const struct python_frame *frame, const char *text) {
  uint32_t number = __atomic_load_n(caller_head(frame), __ATOMIC_ACQUIRE);
  for (; number != 0; number = callers[number - 1].next) {
    const struct caller *caller = &callers[number - 1];
    if (frames_are_same(&caller->frame, frame) && strcmp(caller->text, text) == 0) return caller;
  }
  return NULL;
}

/* NULL if there is no space. */
static const struct caller *caller_add(const struct python_frame *frame, const char *text) {
  os_mutex_lock(&callers_lock);
  const struct caller *known = caller_find(frame, text);
  if (callers == NULL)
    __atomic_store_n(&callers, (struct caller *)os_pages_map(CALLERS_MOST * sizeof *callers),
                     __ATOMIC_RELEASE);
  if (known == NULL && callers != NULL && caller_count < CALLERS_MOST) {
    struct caller *made = &callers[caller_count++];
    made->frame = *frame;
    made->next = *caller_head(frame);
    snprintf(made->text, sizeof made->text, "%s", text);
    __atomic_store_n(caller_head(frame), caller_count, __ATOMIC_RELEASE);
    known = made;
  }
  os_mutex_unlock(&callers_lock);
  return known;
}

/* A thread that calls from the same line again needs no text: other code at the same address has another name
 * or instruction, or is rare enough. */
const void *python_caller_add(const void *address) {
  static _Thread_local uint16_t last_number; /* of the caller, plus one: few bytes are thread-local */
  const struct caller *last = last_number > 0 ? &callers[last_number - 1] : NULL;
  struct python_frame frame;
  char text[CALLER_BYTES];
  if (!python_frame_read(&frame)) return address;
  if (last != NULL && frames_are_same(&last->frame, &frame)) return last;
  if (!python_frame_text(&frame, text, sizeof text)) return address;
  const struct caller *known = caller_find(&frame, text);
  if (known == NULL) known = caller_add(&frame, text);
  if (known == NULL) return address;
  last_number = (uint16_t)(known - callers + 1);
  return known;
}

static const struct caller *caller_at(const void *place) {
  const uintptr_t at = (uintptr_t)place, begin = (uintptr_t)__atomic_load_n(&callers, __ATOMIC_ACQUIRE);
  const bool inside = at >= begin && at < begin + CALLERS_MOST * sizeof *callers;
  return inside ? (const struct caller *)place : NULL;
}

const struct python_frame *python_caller_frame(const void *place) {
  const struct caller *caller = caller_at(place);
  return caller != NULL ? &caller->frame : NULL;
}

const char *python_caller_text(const void *place) {
  const struct caller *caller = caller_at(place);
  return caller != NULL ? caller->text : NULL;
}
