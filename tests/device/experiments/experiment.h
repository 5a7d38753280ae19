// What the experiments share: the driver and kernels of the test programs, clocks, rows of results, descriptors sent
// between processes. A row is printed as
//
//   RESULT | experiment | case | value | unit
//
// and run.py makes a table of all of them.
#pragma once

#include <string>
#include <vector>

#include "tests/device/programs/program.h"

/// First call of main: a work folder of its own, gone when main has returned, and the driver loaded. Skips (77) where
/// there is no driver or no GPU.
void experiment_begin(int argc, char** argv);
/// The nth argument as a number (with K, M or G), or this.
uint64_t argument(int argc, char** argv, int index, uint64_t otherwise);

double seconds();
void report(const char* experiment, const std::string& name, double value, const char* unit);

void send_fd(int socket, int fd);
int receive_fd(int socket);
void signal_other(int socket);
void wait_other(int socket);

/// Memory by the virtual memory calls, readable and writable; `share`: as descriptors.
struct Mapped {
  CUdeviceptr at = 0;
  size_t size = 0;
  CUmemGenericAllocationHandle handle = 0;
};
CUmemAllocationProp properties_of(bool share);
CUdeviceptr reserve_range(size_t size);
void map_handle(const Mapped& memory, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
Mapped map_new(size_t size, bool share);

/// What a process looks like from outside.
struct Look {
  int mappings = 0, device_mappings = 0, descriptors = 0, device_descriptors = 0, pipes = 0;
  long resident_kib = 0;
};
Look look_at(int pid);
std::vector<int> threads_of(int pid);
