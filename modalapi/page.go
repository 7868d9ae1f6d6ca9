package modalapi

import (
	"slices"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
)

// pageSize is how many items are listed at once unless the client says.
const pageSize = 100

// page returns, the newest first, those of all that were made before a time, in seconds as the protocol has it, 0 for any: about limit of them, 0 for
// all. Clients go on before the time of the last one that they have got, so a page does not end between two of the same time.
func page[T any](all []T, before float64, limit int, created func(T) time.Time) []T {
	at := func(item T) float64 { return seconds(created(item)) }
	all = slices.DeleteFunc(slices.Clone(all), func(item T) bool { return before > 0 && at(item) >= before })
	slices.SortStableFunc(all, func(a, b T) int { return created(b).Compare(created(a)) })
	if limit <= 0 || limit >= len(all) {
		return all
	}
	for limit < len(all) && at(all[limit]) == at(all[limit-1]) {
		limit++
	}
	return all[:limit]
}

// creation is the part of an item's metadata by which Python's SDK goes on.
func creation(at time.Time) *pb.CreationInfo {
	return pb.CreationInfo_builder{CreatedAt: seconds(at)}.Build()
}
