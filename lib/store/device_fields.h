// The members of device memory in the manifest; see manifest_fields.h.
#pragma once

#include "lib/store/device_image.h"

namespace ckpt::store {

template <class A>
void describe(A& a, typename A::template Of<DeviceRun> r) {
  a.number("first", r.first);
  a.number("count", r.count);
}

template <class A>
void describe(A& a, typename A::template Of<DeviceAllocation> d) {
  a.number("id", d.id);
  a.hex("address", d.address);
  a.number("size", d.size);
  a.text("uuid", d.uuid);
  a.number("hashes_offset", d.hashes_offset);
  a.list("recomputed", d.recomputed);
}

template <class A>
void describe(A& a, typename A::template Of<DeviceLaunch> l) {
  a.number("sequence", l.sequence);
  a.octets("record", l.record, 0, kMaxLaunchRecord);
}

template <class A>
void describe(A& a, typename A::template Of<DeviceMemory> d) {
  a.number("process", d.process, 0);
  a.number("space", d.space, 0, (1 << 16) - 1);
  a.list("allocations", d.allocations);
  a.list("launches", d.launches);
}

}  // namespace ckpt::store
