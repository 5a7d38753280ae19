// Calls in the forms that older runtimes ask for by name; what is newer stands elsewhere.
#include "tests/device/driver/state.h"

namespace ckpt::cuda::api {

CKPT_STANDIN_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }
CKPT_STANDIN_API CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }
CKPT_STANDIN_API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }
CKPT_STANDIN_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

}  // namespace ckpt::cuda::api
