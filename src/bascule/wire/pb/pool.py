"""The descriptor pool of our generated messages, apart from the process-wide one.

Every Liftbridge client defines package `proto`; two of them in the default pool collide.
"""

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
