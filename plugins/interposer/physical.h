// Physical memory that the program makes itself with cuMemCreate, as PyTorch's expandable segments do. Plain device
// memory is asked for as exportable and given to the program under a handle of our own, so that the memory behind a
// handle can be taken away and another put in its place. What is mapped once, whole, and shared with nobody is owned as
// other large memory is.
#pragma once

#include <vector>

#include "plugins/interposer/driver.h"

namespace ckpt::interposer {

using Handle = CUmemGenericAllocationHandle;

/// CUDA_ERROR_NOT_SUPPORTED: not plain device memory, the caller asks the driver.
CUresult create_physical(Handle* out, size_t size, const CUmemAllocationProp* prop, unsigned long long flags);
/// The driver's handle for one of ours; any other as it is. `share`: whoever gets it may map it where nobody sees it,
/// and its memory is not owned from here on.
Handle real_handle(Handle handle, bool share);
/// False: not one of ours.
bool release_physical(Handle handle);
bool retain_physical(CUdeviceptr address, Handle* out);
/// What the program asked for, in place of what we did.
void restore_properties(Handle handle, CUmemAllocationProp* prop);

/// A handle by which the driver gave the program memory of somebody else; a mapping of it is noted as such.
void physical_imported(Handle handle);

/// Both after the driver has done it.
void physical_mapped(Handle handle, CUdeviceptr base, size_t size, size_t offset);
void physical_unmapped(Handle handle);
void access_set(CUdeviceptr base, size_t size, const CUmemAccessDesc* access, size_t count);

// For taking memory away and putting it back.
void replace_real(Handle handle, Handle real);
std::vector<CUmemAccessDesc> access_of_physical(Handle handle);

void reset_physical_after_fork();

}  // namespace ckpt::interposer
