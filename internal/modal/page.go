package modal

import (
	"slices"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
)

// pageSize is the default number of items in a page.
const pageSize = 100

// page returns about limit of the items created before a time, newest first. before is in the protocol's
// seconds, 0 for any time; limit 0 means all. A client continues before the time of the last item it received,
// so a page never ends between two items of the same time.
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

// creation is the part of an item's metadata that Python's SDK uses to request the next page.
func creation(at time.Time) *pb.CreationInfo {
	return pb.CreationInfo_builder{CreatedAt: seconds(at)}.Build()
}
