// An image as it can be made again in a sealed place (sealed.h): external resources are left out
// or replaced.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lib/engine/sealed.h"
#include "lib/store/image.h"

namespace ckpt::engine {

/// A tree on its way to what can be made there.
class Adjustment {
 public:
  explicit Adjustment(store::TreeImage tree);

  store::TreeImage tree;
  std::vector<std::string> left_out;   ///< by name: what will not be as in the image
  std::set<size_t> strange_sockets;    ///< indices into TreeImage::sockets, of which nothing is to be expected

 private:
  void leave_out(std::string what) { left_out.push_back(std::move(what)); }
  void adjust_files();
  void adjust_lease(store::Descriptor& descriptor);
  void replace_by_null(store::Descriptor& descriptor, int file);
  void adjust_descriptors();
  void adjust_socket(size_t index);
  void adjust_placement();
};

/// An option whose value is an interface: in the place there is only one.
bool names_interface(const store::SocketOption& option);

/// kUnsupported: a file that a rehearsal cannot do without, and that must not be opened beside the process.
Result<void> check_leases(const store::TreeImage& tree);

/// What the place must have for the image.
SealOptions seal_for(const store::TreeImage& tree);

}  // namespace ckpt::engine
