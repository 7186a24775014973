// SPDX-License-Identifier: MIT
#include "tessera/mesh/mailbox.hpp"

#include <utility>

namespace tessera {

Mailbox::Mailbox(Communicator communicator, int number)
    : communicator_(std::move(communicator)), number_(number) {}

// Below what the standard guarantees.
int Mailbox::tag(Subject subject) const {
  constexpr int kNumbers = 10000;
  return 3 * (number_ % kNumbers) + static_cast<int>(subject);
}

// MPI may still read or write the buffers of what has not ended.
Mailbox::~Mailbox() {
  static auto* const kept = new std::list<Parcel>;
  for (std::list<Parcel>* list : {&leaving_, &coming_}) {
    list->remove_if([](const Parcel& parcel) { return parcel.done; });
    kept->splice(kept->end(), *list);
  }
}

void Mailbox::send(int peer, Subject subject, std::string text) {
  leaving_.remove_if([](Parcel& parcel) { return parcel.request.test(); });
  text += '\0';  // no message is empty
  Parcel& parcel = leaving_.emplace_back(Parcel{peer, subject, std::move(text)});
  parcel.request =
      communicator_.send(peer, parcel.text.data(), static_cast<std::int64_t>(parcel.text.size()),
                         tag(subject), Communicator::Parts::whole);
}

void Mailbox::collect() {
  for (const Subject subject : {Subject::question, Subject::verdict, Subject::stall})
    while (const auto arrived = communicator_.probe(tag(subject))) {
      Parcel& parcel = coming_.emplace_back(Parcel{
          arrived->peer, subject, std::string(static_cast<std::size_t>(arrived->bytes), ' ')});
      parcel.request = communicator_.receive(parcel.peer, parcel.text.data(), arrived->bytes,
                                             tag(subject), Communicator::Parts::whole);
    }
  for (Parcel& parcel : coming_) parcel.done = parcel.done || parcel.request.test();
}

std::optional<Mailbox::Letter> Mailbox::take(int peer, Subject subject) {
  collect();
  for (auto parcel = coming_.begin(); parcel != coming_.end(); ++parcel) {
    if (parcel->subject != subject || (peer >= 0 && parcel->peer != peer)) continue;
    if (!parcel->done) {
      if (peer >= 0) return std::nullopt;  // later ones wait for it
      continue;
    }
    Letter letter{parcel->peer, std::move(parcel->text)};
    letter.text.pop_back();
    coming_.erase(parcel);
    return letter;
  }
  return std::nullopt;
}

std::string pack_fields(const std::vector<std::string>& fields) {
  std::string packed;
  for (const std::string& field : fields) {
    packed += field;
    packed += '\0';
  }
  return packed;
}

std::vector<std::string> unpack_fields(std::string_view packed) {
  std::vector<std::string> fields;
  while (!packed.empty()) {
    const std::size_t end = packed.find('\0');
    fields.emplace_back(packed.substr(0, end));
    packed.remove_prefix(end == std::string_view::npos ? packed.size() : end + 1);
  }
  return fields;
}

}  // namespace tessera
