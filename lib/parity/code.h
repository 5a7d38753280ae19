// Which bytes of a set's members make which parity: partner, xor and rs as one kind of code, and how what is lost comes
// back. Pure arithmetic.
//
// The bytes of each member are cut into chunks of one length, and the chunks laid out in rows, one for each member. In
// a row a member has one symbol at most: a chunk of its data, or parity of the row's data, held for the others.
//   partner  row r: the data of member r; copies with the k members behind it
//   xor, rs  row r: parity with members r ... r+k-1, data of all others (RAID-5's rotation; k = 1 is xor)
// A parity symbol is the sum of the row's data symbols, each times a coefficient: a Cauchy matrix whose columns are
// scaled so that the first parity is a plain xor. Any k members of a set may be lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::parity {

enum class Scheme { kPartner, kXor, kRs };
std::string_view scheme_name(Scheme scheme);
std::optional<Scheme> scheme_from_name(std::string_view name);

/// What a member has in a row. `index`: which of its data chunks, or of its parity chunks, in the order of rows; and
/// for parity `place`, which of the row's.
struct Symbol {
  enum class Kind { kNone, kData, kParity } kind = Kind::kNone;
  uint32_t index = 0, place = 0;
};

class ErasureCode {
 public:
  /// kUsage: there is no such code of so many members.
  static Result<ErasureCode> make(Scheme scheme, uint32_t members, uint32_t parity);

  Scheme scheme() const { return scheme_; }
  uint32_t members() const { return members_; }
  uint32_t parity() const { return parity_; }
  uint32_t rows() const { return members_; }
  /// Of each member.
  uint32_t data_chunks() const { return scheme_ == Scheme::kPartner ? 1 : members_ - parity_; }
  uint32_t parity_chunks() const { return parity_; }

  Symbol symbol(uint32_t member, uint32_t row) const;
  /// The members with a parity symbol in the row, by place; those with data.
  std::vector<uint32_t> holders(uint32_t row) const;
  std::vector<uint32_t> contributors(uint32_t row) const;
  /// Of the data of `member` in the parity of `place`.
  uint8_t coefficient(uint32_t row, uint32_t place, uint32_t member) const;

 private:
  Scheme scheme_ = Scheme::kXor;
  uint32_t members_ = 0, parity_ = 0;
};

/// What of a member cannot be read any more.
struct Loss {
  bool data = false, parity = false;
  bool any() const { return data || parity; }
};

/// A symbol of the row as a sum of others: factor times the symbol of each member.
struct Sum {
  uint32_t row = 0, target = 0;  ///< a member
  struct Term {
    uint32_t member = 0;
    uint8_t factor = 0;
  };
  std::vector<Term> terms;  ///< by member, no factor is 0
};

/// Every parity symbol.
std::vector<Sum> encoding(const ErasureCode& code);
/// Every lost symbol from those that are left; nothing: too much is lost. `losses`: of each member.
std::optional<std::vector<Sum>> recovery(const ErasureCode& code, const std::vector<Loss>& losses);

}  // namespace ckpt::parity
