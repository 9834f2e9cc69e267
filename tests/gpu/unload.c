/* unload.c: a program that opens the library with dlopen, uses it, closes it, and does so again. With an
 * argument it closes the library while a communicator lives, and ends: a wrong program.
 *
 *     unload [living] */
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1000 };

#define NEED(call)                                                            \
  do {                                                                        \
    const int status_ = (int)(call);                                          \
    if (status_ != 0) {                                                       \
      fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, status_); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

static void *library;

static void *function(const char *name) {
  void *found = dlsym(library, name);
  NEED(found == NULL);
  return found;
}

#define FIND(name)             \
  __typeof__(name) *my_##name; \
  *(void **)&my_##name = function(#name)

static void use(int destroys) {
  static float ones[COUNT];
  ncclComm_t comm;
  cudaStream_t stream;
  float *data, factor = 2;
  ncclRedOp_t twice;
  library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  NEED(library == NULL);
  FIND(ncclCommInitAll);
  FIND(ncclCommDestroy);
  FIND(ncclAllReduce);
  FIND(ncclRedOpCreatePreMulSum);
  FIND(ncclRedOpDestroy);
  NEED(my_ncclCommInitAll(&comm, 1, NULL));
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  NEED(cudaMalloc((void **)&data, sizeof ones));
  for (int i = 0; i < COUNT; i++) ones[i] = 1;
  NEED(cudaMemcpy(data, ones, sizeof ones, cudaMemcpyHostToDevice));
  NEED(my_ncclRedOpCreatePreMulSum(&twice, &factor, ncclFloat, ncclScalarHostImmediate, comm));
  NEED(my_ncclAllReduce(data, data, COUNT, ncclFloat, twice, comm, stream));
  NEED(cudaStreamSynchronize(stream));
  NEED(cudaMemcpy(ones, data, sizeof ones, cudaMemcpyDeviceToHost));
  for (int i = 0; i < COUNT; i++) NEED(ones[i] != 2);
  NEED(my_ncclRedOpDestroy(twice, comm));
  NEED(cudaFree(data));
  NEED(cudaStreamDestroy(stream));
  if (destroys) NEED(my_ncclCommDestroy(comm));
  NEED(dlclose(library));
}

int main(int argument_count, char **arguments) {
  (void)arguments;
  for (int round = 0; round < 2; round++) use(1);
  if (argument_count > 1) use(0);
  printf("unload: the library was closed%s: ok\n",
         argument_count > 1 ? ", and while a communicator lived" : "");
  return 0;
}
