//go:build !keeper

package inner

var packedKeeper, packedSentry, packedS3 []byte
