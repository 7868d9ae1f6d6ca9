#!/bin/sh
set -e
echo "installing beside"
