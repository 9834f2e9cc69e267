/* python_frame.c: follows the calling thread's state to its innermost frame. Every object is compared with
 * the type that it must have before it is used, so an interpreter of another layout is noticed. */
#include "base/python_frame.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/callsite.h"

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
  FRAMES_MOST = 4
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

bool python_frame_read(struct python_frame *out) {
  const void *state = python.thread_state();
  if (state == NULL) return false;
  const void *frame = pointer_at(state, layout->current);
  if (frame != NULL && layout->in_cframe >= 0) frame = pointer_at(frame, (size_t)layout->in_cframe);
  for (int i = 0; i < FRAMES_MOST && frame != NULL; i++, frame = pointer_at(frame, layout->previous)) {
    if (((const char *)frame)[layout->owner] == OWNED_BY_C) continue;
    const void *code = pointer_at(frame, layout->code);
    if (code == NULL || pointer_at(code, TYPE) != python.code_type) return false;
    *out = (struct python_frame){code, pointer_at(frame, layout->instruction), pointer_at(code, NAME)};
    return true;
  }
  return false;
}

/* The characters of a str; NULL if they are not ASCII. */
static const char *ascii_of(const void *text) {
  uint32_t state;
  if (text == NULL || pointer_at(text, TYPE) != python.text_type) return NULL;
  memcpy(&state, (const char *)text + TEXT_STATE, sizeof state);
  return (state & TEXT_IS_ASCII) == TEXT_IS_ASCII ? (const char *)text + layout->text : NULL;
}

bool python_frame_text(const struct python_frame *frame, char *out, size_t out_bytes) {
  const char *path = ascii_of(pointer_at(frame->code, FILE_NAME)), *name = ascii_of(frame->name);
  const int64_t offset =
      (const char *)frame->instruction - ((const char *)frame->code + layout->instructions);
  if (path == NULL || name == NULL || offset < -2 || offset > INT32_MAX) return false;
  void *code;
  memcpy(&code, &frame->code, sizeof code);
  snprintf(out, out_bytes, "%s:%d (%s)", callsite_base_name(path), python.line(code, (int)offset), name);
  return true;
}
