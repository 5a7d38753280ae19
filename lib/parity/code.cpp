#include "lib/parity/code.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "lib/parity/galois.h"

namespace ckpt::parity {

namespace {

constexpr std::array<std::string_view, 3> kNames = {"partner", "xor", "rs"};
constexpr uint32_t kFieldSize = 256;

}  // namespace

std::string_view scheme_name(Scheme scheme) { return kNames[static_cast<size_t>(scheme)]; }

std::optional<Scheme> scheme_from_name(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Scheme>(found - kNames.begin());
}

Result<ErasureCode> ErasureCode::make(Scheme scheme, uint32_t members, uint32_t parity) {
  const std::string name(scheme_name(scheme));
  if (parity == 0 || (scheme == Scheme::kXor && parity != 1))
    return fail(Code::kUsage, name, fmt::format("has no form that survives {} losses", parity));
  if (members <= parity)
    return fail(Code::kUsage, name,
                fmt::format("a set of {} cannot survive the loss of {}: it takes more members", members, parity));
  if (members > kFieldSize - parity)
    return fail(Code::kUsage, name, fmt::format("a set has at most {} members", kFieldSize - parity));
  ErasureCode out;
  out.scheme_ = scheme, out.members_ = members, out.parity_ = parity;
  return out;
}

Symbol ErasureCode::symbol(uint32_t member, uint32_t row) const {
  const uint32_t n = members_, behind = (member + n - row) % n;  // so many places behind the row's first
  if (scheme_ == Scheme::kPartner) {
    if (behind == 0) return {Symbol::Kind::kData, 0, 0};
    if (behind > parity_) return {};
    // Rows member-k ... member-1, those that wrap around behind the others.
    uint32_t index = 0;
    for (uint32_t other = 0; other < row; ++other) {
      const uint32_t distance = (member + n - other) % n;
      index += distance != 0 && distance <= parity_ ? 1 : 0;
    }
    return {Symbol::Kind::kParity, index, behind - 1};
  }
  uint32_t parity_before = 0;
  for (uint32_t other = 0; other < row; ++other) parity_before += (member + n - other) % n < parity_ ? 1 : 0;
  if (behind < parity_) return {Symbol::Kind::kParity, parity_before, behind};
  return {Symbol::Kind::kData, row - parity_before, 0};
}

std::vector<uint32_t> ErasureCode::holders(uint32_t row) const {
  std::vector<uint32_t> out(parity_);
  const uint32_t first = scheme_ == Scheme::kPartner ? row + 1 : row;
  for (uint32_t i = 0; i < parity_; ++i) out[i] = (first + i) % members_;
  return out;
}

std::vector<uint32_t> ErasureCode::contributors(uint32_t row) const {
  if (scheme_ == Scheme::kPartner) return {row};
  std::vector<uint32_t> out;
  for (uint32_t member = 0; member < members_; ++member) {
    if ((member + members_ - row) % members_ >= parity_) out.push_back(member);
  }
  return out;
}

uint8_t ErasureCode::coefficient(uint32_t row, uint32_t place, uint32_t member) const {
  if (scheme_ != Scheme::kRs || place == 0) return 1;
  // 1 / (x + y) with x the place and y a number of the member that no place has, times the column's 0 + y.
  const uint32_t y = (member + members_ - row) % members_;
  return gf_multiply(gf_inverse(static_cast<uint8_t>(place ^ y)), static_cast<uint8_t>(y));
}

std::vector<Sum> encoding(const ErasureCode& code) {
  std::vector<Sum> out;
  for (uint32_t row = 0; row < code.rows(); ++row) {
    const std::vector<uint32_t> holders = code.holders(row), contributors = code.contributors(row);
    for (uint32_t place = 0; place < holders.size(); ++place) {
      Sum& sum = out.emplace_back(Sum{row, holders[place], {}});
      for (uint32_t member : contributors) sum.terms.push_back({member, code.coefficient(row, place, member)});
    }
  }
  return out;
}

namespace {

/// A sum under way: the factor of each member's symbol.
using Factors = std::map<uint32_t, uint8_t>;

void add(Factors& into, const Factors& terms, uint8_t factor) {
  for (const auto& [member, value] : terms) into[member] ^= gf_multiply(value, factor);
}

Sum make_sum(uint32_t row, uint32_t target, const Factors& factors) {
  Sum out{row, target, {}};
  for (const auto& [member, factor] : factors) {
    if (factor != 0) out.terms.push_back({member, factor});
  }
  return out;
}

/// The lost data of a row in terms of what is left: by as many parities as data is lost, whose equations are solved.
std::optional<std::map<uint32_t, Factors>> solve(const ErasureCode& code, uint32_t row,
                                                 const std::vector<Loss>& losses) {
  const std::vector<uint32_t> holders = code.holders(row), contributors = code.contributors(row);
  std::vector<uint32_t> lost, places;
  for (uint32_t member : contributors) {
    if (losses[member].data) lost.push_back(member);
  }
  for (uint32_t place = 0; place < holders.size() && places.size() < lost.size(); ++place) {
    if (!losses[holders[place]].parity) places.push_back(place);
  }
  if (places.size() < lost.size()) return std::nullopt;
  Matrix equations(lost.size(), std::vector<uint8_t>(lost.size()));
  for (size_t i = 0; i < places.size(); ++i) {
    for (size_t j = 0; j < lost.size(); ++j) equations[i][j] = code.coefficient(row, places[i], lost[j]);
  }
  const std::optional<Matrix> inverse = gf_invert(std::move(equations));
  CKPT_ASSERT(inverse.has_value());  // every square part of a scaled Cauchy matrix is regular
  std::map<uint32_t, Factors> out;
  for (size_t j = 0; j < lost.size(); ++j) {
    Factors& factors = out[lost[j]];
    for (size_t i = 0; i < places.size(); ++i) {
      const uint8_t weight = (*inverse)[j][i];
      Factors known = {{holders[places[i]], 1}};
      for (uint32_t member : contributors) {
        if (!losses[member].data) known[member] = code.coefficient(row, places[i], member);
      }
      add(factors, known, weight);
    }
  }
  return out;
}

}  // namespace

std::optional<std::vector<Sum>> recovery(const ErasureCode& code, const std::vector<Loss>& losses) {
  CKPT_ASSERT(losses.size() == code.members());
  std::vector<Sum> out;
  for (uint32_t row = 0; row < code.rows(); ++row) {
    const auto solved = solve(code, row, losses);
    if (!solved) return std::nullopt;
    for (const auto& [member, factors] : *solved) out.push_back(make_sum(row, member, factors));
    const std::vector<uint32_t> holders = code.holders(row);
    for (uint32_t place = 0; place < holders.size(); ++place) {
      if (!losses[holders[place]].parity) continue;
      Factors factors;
      for (uint32_t member : code.contributors(row)) {
        const uint8_t coefficient = code.coefficient(row, place, member);
        if (losses[member].data)
          add(factors, solved->at(member), coefficient);
        else
          factors[member] ^= coefficient;
      }
      out.push_back(make_sum(row, holders[place], factors));
    }
  }
  return out;
}

}  // namespace ckpt::parity
