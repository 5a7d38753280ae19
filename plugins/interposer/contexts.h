// The contexts that the program has, and the stream captures that it is in the middle of.
#pragma once

#include <string>
#include <vector>

#include "plugins/interposer/driver.h"
#include "plugins/interposer/api_lock.h"

namespace ckpt::interposer {

void context_made(CUcontext context, int device, bool primary);
/// One that is current: the runtime may have made it by a way that passes nobody.
void context_seen(CUcontext context, int device);
void context_ended(CUcontext context);
/// The primary context of a device, if the program has retained it.
CUcontext primary_context(int device);
std::vector<CUcontext> all_contexts();
/// Of each. The driver is not asked: in a suspended process it would answer once that is resumed.
std::vector<int> devices_of_contexts();

void capture_began(CUstream stream);
void capture_ended(CUstream stream);
/// Asks the driver about each: an error ends one, too.
bool captures_active();

/// Waits for all work of every context. CUDA_ERROR_NOT_READY: not by the deadline; the waiting goes on in a thread of
/// its own, which the next call joins. No capture may be active.
CUresult drain(uint64_t deadline_ns, GiveUp give_up);

/// This thread's calls are allowed while others capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { drv::cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { drv::cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

void reset_contexts_after_fork();

}  // namespace ckpt::interposer
