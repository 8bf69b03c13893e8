#include "tier/survivors/children.h"

namespace kvcachefs {

void Children::serving(uint64_t since_ns) {
  if (shared_ == nullptr) return;
  shared_->last_beat_ns = since_ns;
  shared_->serving_since_ns = since_ns;
}

void Children::ending() {
  if (shared_ != nullptr) shared_->serving_since_ns = 0;
}

uint64_t Children::serving_since_ns() const {
  return shared_ != nullptr ? shared_->serving_since_ns.load() : 0;
}

void Children::beat(uint64_t at_ns) {
  if (shared_ != nullptr) shared_->last_beat_ns = at_ns;
}

uint64_t Children::last_beat_ns() const {
  return shared_ != nullptr ? shared_->last_beat_ns.load() : 0;
}

void Children::forbid_succession() {
  if (shared_ != nullptr) shared_->forbidden = 1;
}

bool Children::may_succeed() const {
  return shared_ != nullptr && shared_->forbidden == 0;
}

void Children::upgraded() {
  ++shared_->upgrades_done;
}

void Children::upgrade_refused(std::string_view reason) {
  shared_->refusal[reason.copy(shared_->refusal.data(), kMostReasonBytes - 1)] = '\0';
  ++shared_->upgrades_refused;
}

Children::Upgrades Children::upgrades() const {
  if (shared_ == nullptr) return {};
  return {shared_->upgrades_done, shared_->upgrades_refused, shared_->refusal.data()};
}

}  // namespace kvcachefs
